"""ocrlab trains a DBNet text detector, and says why training failed.

Importing it costs next to nothing: `Config` and `Detector` are fetched when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ocrlab._version import __version__

if TYPE_CHECKING:
    from ocrlab.config.schema import Config
    from ocrlab.inference import Detector

__all__ = ["Config", "Detector", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Config":
        from ocrlab.config.schema import Config

        return Config
    if name == "Detector":
        from ocrlab.inference import Detector

        return Detector
    raise AttributeError(f"module 'ocrlab' has no attribute {name!r}; it has {', '.join(__all__)}")


def load_ipython_extension(shell: Any) -> None:
    """Add the cell magic `%%isolated` to a notebook: `%load_ext ocrlab`."""
    from ocrlab.notebook import register

    register(shell)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
