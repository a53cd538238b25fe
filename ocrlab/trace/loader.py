"""Deprecated: use `ocrlab.debug.watch_dataloader`."""

from ocrlab.deprecated_modules import renamed

renamed(__name__, "ocrlab.debug.instruments.dataloader.loader_watch", "ocrlab.debug.watch_dataloader")
