"""Deprecated: use `ocrlab.debug.watch_memory`."""

from ocrlab.deprecated_modules import renamed

renamed(__name__, "ocrlab.debug.instruments.memory.memory_watch", "ocrlab.debug.watch_memory")
