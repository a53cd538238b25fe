"""ocrlab trains a DBNet text detector, and explains why a PyTorch training failed.

The public names are here and in `ocrlab.debug`, `ocrlab.data`, `ocrlab.evaluation`, `ocrlab.inference`,
`ocrlab.training`, `ocrlab.hardware` and `ocrlab.reports`. Each is imported when it is first used: `import ocrlab`
itself needs only the standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ocrlab._version import __version__
from ocrlab.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ocrlab.config.schema import Config
    from ocrlab.debug.laws.checker import check_step
    from ocrlab.debug.recorder.lightning_callback import Recorder
    from ocrlab.debug.recorder.loop_recorder import record
    from ocrlab.inference.detector import Detector

__all__ = ["Config", "Detector", "Recorder", "__version__", "check_step", "record"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Config": "ocrlab.config.schema",
        "Detector": "ocrlab.inference.detector",
        "Recorder": "ocrlab.debug.recorder.lightning_callback",
        "check_step": "ocrlab.debug.laws.checker",
        "record": "ocrlab.debug.recorder.loop_recorder",
    },
)


def load_ipython_extension(shell: Any) -> None:
    """Add the cell magic `%%isolated`, and explanations below the tracebacks of cells: `%load_ext ocrlab`."""
    from ocrlab.notebook import explained_errors, register

    register(shell)
    explained_errors.register(shell)
