"""Deprecated: use `ocrlab.debug.watch_layers`."""

from ocrlab.deprecated_modules import renamed

renamed(__name__, "ocrlab.debug.instruments.layers.layer_watch", "ocrlab.debug.watch_layers")
