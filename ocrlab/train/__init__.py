"""Deprecated: `ocrlab.train.recorder` is `ocrlab.record` and `ocrlab.Recorder`."""
