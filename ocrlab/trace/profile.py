"""Deprecated: use `ocrlab.debug.profile_steps`."""

from ocrlab.deprecated_modules import renamed

renamed(__name__, "ocrlab.debug.instruments.profiler.step_profiler", "ocrlab.debug.profile_steps")
