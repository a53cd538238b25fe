"""Training of a detector: `fit(config)` from a config to a run folder, `resume(run)` from where a run ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ocrlab.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ocrlab.training.loop import fit, resume

__all__ = ["fit", "resume"]

__getattr__, __dir__ = lazy_exports(__name__, {"fit": "ocrlab.training.loop", "resume": "ocrlab.training.loop"})
