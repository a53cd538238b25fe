"""Deprecated: the instruments are the context managers of `ocrlab.debug`, and `ocrlab.check_step`."""
