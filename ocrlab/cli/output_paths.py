"""Files and folders that the command line names: checked before anything is computed, and never written over."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ocrlab.errors import ConfigError


def path(text: str) -> Path:
    """Return a path from the command line; raises ArgumentTypeError for an empty one, which would be this folder."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def new_file(file: Path, option: str) -> None:
    """Raise ConfigError unless `file` can be made: it is not there yet, its folder is or can be."""
    if os.path.lexists(file):
        raise ConfigError("Nothing is overwritten", got=f"{option} {file}, which exists already", need="a new file")
    folder(file.parent, option)


def folder(wanted: Path, option: str) -> None:
    """Raise ConfigError unless `wanted` is a folder that can be written into, or one that can be made."""
    there = next(place for place in (wanted, *wanted.absolute().parents) if os.path.lexists(place))
    if not there.is_dir():
        dead = there.is_symlink() and not there.exists()
        got = f"{there}, which is a link that leads nowhere" if dead else f"{there}, which is no folder"
        raise ConfigError(f"{option} leads through {'a link' if dead else 'a file'}", got=got, need="a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        got = f"no right to write into {there.absolute()}"  # a bare `.` would be read as the end of the sentence
        raise ConfigError(f"{option} cannot be written", got=got, need="another folder")


def make(wanted: Path, option: str) -> None:
    """Make a folder with those above it; raises ConfigError if the system refuses."""
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{option} {wanted} cannot be made", got=error.strerror, need="a folder of yours") from error
