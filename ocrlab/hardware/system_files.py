"""Small files of /proc and /sys, any of which may be missing, closed to this user, or gone a moment later."""

from __future__ import annotations

import os
import re
from pathlib import Path

FIELD = re.compile(r"^(\w+):\s+(\d+) kB", re.MULTILINE)
COUNT = re.compile(r"^(\w+) (\d+)$", re.MULTILINE)


def read_text(path: Path) -> str:
    """Return the text of a file without white space around it, "" where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def list_names(folder: Path) -> list[str]:
    """Return the names in a folder, none where it cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def link_target(path: Path) -> str:
    """Return where a link points, "" where it cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def memory_fields(path: Path) -> dict[str, int]:
    """Return the `Name: 12 kB` lines of a file such as /proc/meminfo, in bytes; empty where it cannot be read."""
    return {name: int(count) * 1024 for name, count in FIELD.findall(read_text(path))}


def counts(path: Path) -> dict[str, int]:
    """Return the `name 12` lines of a file such as memory.stat; empty where it cannot be read."""
    return {name: int(count) for name, count in COUNT.findall(read_text(path))}
