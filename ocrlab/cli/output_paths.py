"""Files and folders that the command line names: checked before anything is computed, and never written over."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ocrlab.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def new_file(file: Path, option: str, *, in_existing_folder: bool = False, need: str = "a new file") -> None:
    """Raise ConfigError unless `file` can be made: it is not there yet, and its folder is there or can be made."""
    if os.path.lexists(file):
        raise ConfigError("Nothing is overwritten", got=f"{option} {file}, which exists already", need=need)
    if in_existing_folder and not file.parent.is_dir():
        do = f"Make it, or name another file for {option}"
        raise ConfigError(f"There is no folder {file.parent}", got=f"{option} {file}", do=do)
    folder(file.parent, option)


def folder(wanted: Path, option: str) -> None:
    """Raise ConfigError unless `wanted` is a folder that can be written into, or one that can be made."""
    there = next(place for place in (wanted, *wanted.absolute().parents) if os.path.lexists(place))
    if not there.is_dir():
        dead = there.is_symlink() and not there.exists()
        got = f"{there}, which is {'a link that leads nowhere' if dead else 'not a folder'}"
        raise ConfigError(f"{option} leads through {'a link' if dead else 'a file'}", got=got, need="a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        got = f"no right to write into {there.absolute()}"  # a bare `.` would be read as the end of the sentence
        raise ConfigError(f"{option} cannot be written", got=got, need="another folder")


def make(wanted: Path, option: str) -> None:
    """Make a folder with those above it; raises ConfigError if the system refuses."""
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        need = "a folder that you may create"
        raise ConfigError(f"{option} {wanted} cannot be made", got=error.strerror, need=need) from error


def unused(wanted: Path, taken: Callable[[Path], bool] = os.path.lexists) -> Path:
    """Return `wanted`, or the first of NAME-2, NAME-3 ... that is not taken."""
    numbered = (wanted.with_stem(f"{wanted.stem}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([wanted], numbered) if not taken(path))


def write_png(file: Path, picture: NDArray[np.uint8]) -> None:
    """Write a picture (H, W, 3) RGB as PNG, whole or not at all."""
    import cv2

    from ocrlab import run_folder

    _, data = cv2.imencode(".png", picture[..., ::-1])
    run_folder.write_bytes(file, data.tobytes())
