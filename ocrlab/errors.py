"""Every error that ocrlab raises on purpose.

OcrlabError
├── ConfigError       a config key or value is unknown, of the wrong type, or out of range      (ValueError)
├── DataError         an image, annotation file or data folder cannot be used                   (ValueError)
├── ShapeError        a tensor or array has the wrong shape, dtype, device or range             (ValueError)
├── CheckpointError   a checkpoint is missing, unreadable, or of another model                  (ValueError)
├── WeightsError      pretrained weights were asked for and cannot be fetched                   (RuntimeError)
└── RunError          a run folder cannot be found, resumed or written                          (RuntimeError)

Each carries four short texts: what happened, what was given, what is needed, what to do. `wrong_use` says that the
caller asked for what there is not: a setting, or the path of a file or folder; a command then ends with status 2.
"""

from __future__ import annotations


class OcrlabError(Exception):
    """Base of all errors of this package; `str()` is one readable sentence group, the parts stay as attributes."""

    wrong_use = False

    def __init__(
        self, what: str, *, got: object = None, need: object = None, do: str | None = None, missing: bool = False
    ) -> None:
        """Keep the four texts; `missing` says that a path which the caller named is not there."""
        self.what, self.got, self.need, self.do = what, got, need, do
        self.wrong_use = self.wrong_use or missing
        parts = [_unended(what)]
        if got is not None:
            parts.append(_unended(f"Given: {got}"))
        if need is not None:
            parts.append(_unended(f"Needed: {need}"))
        if do:
            parts.append(_unended(do))
        text = ". ".join(parts)
        super().__init__(text if text.endswith(("?", "!")) else f"{text}.")

    def _render_traceback_(self) -> list[str]:
        """Let IPython show one line: the text says what to do, and the frames of this package tell nobody anything."""
        return [f"{type(self).__name__}: {self}"]


def _unended(sentence: str) -> str:
    """Return a sentence without its full stop; the dots of `..` and `...` belong to its last word."""
    return sentence if sentence.endswith("..") else sentence.removesuffix(".")


class ConfigError(OcrlabError, ValueError):
    """A config key or value is unknown, of the wrong type, or out of range."""

    wrong_use = True


class DataError(OcrlabError, ValueError):
    """An image, annotation file or data folder cannot be used; the text names file and line where there is one."""


class ShapeError(OcrlabError, ValueError):
    """A tensor or array has the wrong shape, dtype, device or range."""


class CheckpointError(OcrlabError, ValueError):
    """A checkpoint is missing, unreadable, or was written for another model."""


class WeightsError(OcrlabError, RuntimeError):
    """Pretrained weights were asked for and cannot be fetched."""


class RunError(OcrlabError, RuntimeError):
    """A run folder cannot be found, resumed or written."""
