"""Deprecated: use `ocrlab.record` and `ocrlab.Recorder`."""

from ocrlab.deprecated_modules import renamed

renamed(__name__, "ocrlab.debug.recorder.lightning_callback", "ocrlab.record or ocrlab.Recorder")
