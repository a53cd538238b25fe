"""Deprecated: use `ocrlab.check_step(model, batch, loss, optimizer)`."""

from ocrlab.deprecated_modules import renamed

renamed(__name__, "ocrlab.debug.instruments.step_check.checker", "ocrlab.check_step(model, batch, loss, optimizer)")
