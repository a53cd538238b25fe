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

import re
from collections.abc import Sequence

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class OcrlabError(Exception):
    """Base of all errors of this package; `str()` is one readable sentence group, the parts stay as attributes."""

    wrong_use = False

    def __init__(
        self,
        what: str,
        *,
        got: object = None,
        need: object = None,
        do: str | None = None,
        missing: bool = False,
        parts: Sequence[OcrlabError] = (),
    ) -> None:
        """Keep the four texts; `missing` says that a path which the caller named is not there, `parts` are listed."""
        self.what, self.got, self.need, self.do = what, got, need, do
        self.wrong_use = self.wrong_use or missing
        facts = [what, None if got is None else f"Given: {got}", None if need is None else f"Needed: {need}", do]
        text = escape_name(". ".join(_unended(fact) for fact in facts if fact))
        text = "\n- ".join([text, *map(str, parts)])
        super().__init__(text if text.endswith(("?", "!", ".")) and not text.endswith("..") else f"{text}.")

    def _render_traceback_(self) -> list[str]:
        """Let IPython show one line: the text says what to do, and the frames of this package tell nobody anything."""
        return [f"{type(self).__name__}: {self}"]


def _unended(sentence: str) -> str:
    """Return a sentence without its full stop; the dots of `..` and `...` belong to its last word."""
    return sentence if sentence.endswith("..") else sentence.removesuffix(".")


def escape_name(text: object) -> str:
    """Return a text on one line: the control characters of a stranger's file name are shown, and not obeyed."""
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), str(text))


def escape_control(text: str) -> str:
    """Return a text of several lines for a terminal: `escape_name` of each line, but for tabs."""
    return "\n".join("\t".join(map(escape_name, line.split("\t"))) for line in text.split("\n"))


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
