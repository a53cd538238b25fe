"""Deprecated: use `ocrlab.check_step(model, batch, loss, optimizer)`."""

from ocrlab.deprecated_modules import renamed

renamed(__name__, "ocrlab.debug.laws.checker", "ocrlab.check_step(model, batch, loss, optimizer)")
