"""Deprecated: use `ocrlab.debug.watch_leaks`."""

from ocrlab.deprecated_modules import renamed

renamed(__name__, "ocrlab.debug.instruments.leaks.leak_watch", "ocrlab.debug.watch_leaks")
