"""What has changed since a run: its program's files, the pages of the step, the packages; each makes a replay differ.

Only what is known is said: a page whose file is not found by its name is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

SHOWN = 4  # names that a warning tells
FOLDER = re.compile(r"^data:\s*(?P<folder>\S.*?)\s*$", re.MULTILINE)


def find_changes(run: Path, program: Mapping[str, Any], samples: Sequence[str]) -> list[str]:
    """Return a warning for each kind of thing that is not what it was when the run began."""
    began = float(program.get("time") or 0)
    folder = Path(str(program.get("cwd") or "."))
    words = [str(word) for word in list(program.get("argv") or ())[1:4] if str(word).endswith((".py", ".yaml", ".yml"))]
    warnings = [f"{Path(word).name} has changed since the run began" for word in words if _newer(folder / word, began)]
    warnings += [f"{word} is gone: it was started with it" for word in words if not (folder / word).is_file()]
    pages = [name for name in samples if any(_newer(place / name, began) for place in [folder, *_data(run, folder)])]
    if pages:
        more = f" and {len(pages) - SHOWN} more" if len(pages) > SHOWN else ""
        warnings.append(f"written after the run began: {', '.join(pages[:SHOWN])}{more}")
    packages = _packages(run)
    if packages:
        more = f" and {len(packages) - SHOWN} more" if len(packages) > SHOWN else ""
        warnings.append(f"packages have changed: {', '.join(packages[:SHOWN])}{more}")
    return warnings


def _newer(path: Path, began: float) -> bool:
    try:
        return bool(began) and path.is_file() and path.stat().st_mtime > began
    except (OSError, ValueError):  # a name that no file can have
        return False


def _data(run: Path, folder: Path) -> list[Path]:
    """Return the folder of the data set that the run's config names."""
    try:
        match = FOLDER.search((run / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return []
    return [folder / match["folder"].strip("'\"")] if match else []


def _packages(run: Path) -> list[str]:
    """Return the packages of environment.json that have another version in this Python, or are gone."""
    try:
        recorded = json.loads((run / "environment.json").read_bytes())["packages"]
        pairs = [(str(name), str(version)) for name, version in recorded.items()]
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return []
    changes = []
    for name, version in pairs:
        try:
            now = metadata.version(name)
        except metadata.PackageNotFoundError:
            now = "none"
        if now != version:
            changes.append(f"{name} {version} is {now} now")
    return sorted(changes, key=lambda text: not text.startswith(("torch", "lightning", "numpy", "opencv")))
