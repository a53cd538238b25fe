"""What Python would import, found without importing any of it; runs under any Python from 3.8 on, without ocrlab."""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.metadata
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

IMPORTED = ("torch", "torchvision", "numpy", "cv2", "lightning", "wandb", "PIL", "shapely", "pyclipper", "numba")
STANDARD = """abc ast asyncio bisect calendar code codecs collections copy csv ctypes dataclasses datetime decimal dis
email enum functools glob hashlib html http inspect io json locale logging math multiprocessing numbers operator parser
pathlib pickle platform profile queue random re resource secrets select selectors signal socket ssl stat statistics
string struct subprocess symbol tempfile test textwrap threading time token tokenize traceback types typing uuid
warnings weakref xml zipfile""".split()  # what is imported late enough to be shadowed; sys.stdlib_module_names is 3.10


def facts() -> dict[str, Any]:
    """Return the interpreter, its search path, every distribution, and where the packages that matter lie."""
    return {
        "interpreter": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
            "executable": sys.executable,
            "environment": sys.prefix != sys.base_prefix or bool(conda()),
            "bits": 64 if sys.maxsize > 2**32 else 32,
            "machine": platform.machine(),
            "variables": {name: os.environ[name] for name in ("PYTHONPATH", "PYTHONHOME") if os.environ.get(name)},
        },
        "distributions": distributions(),
        "leftovers": leftovers(),
        "found": {name: origin(name) for name in IMPORTED},
        "shadows": shadows(),
        "torch": torch_version(),
        "conda": conda(),
    }


def distributions() -> list[dict[str, Any]]:
    """Return every installed distribution in the order of the search path: the first of a name is what is imported."""
    every = []
    for distribution in importlib.metadata.distributions():
        with contextlib.suppress(Exception):  # half-removed packages raise all kinds of errors
            text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
            header = text.partition("\n\n")[0]  # the parser of importlib.metadata reads all that follows, too
            fields = dict(re.findall(r"(?m)^(Name|Version): *(.+?) *$", header))
            record: dict[str, Any] = {
                "name": re.sub(r"[-_.]+", "-", fields["Name"]).lower(),
                "version": fields["Version"],
                "place": str(Path(str(distribution.locate_file(""))).resolve()),
            }
            if record["name"] in ("torch", "torchvision", "torchaudio"):
                needs = re.findall(r"(?m)^Requires-Dist: *(.+?) *$", header)
                record["needs"] = [need for need in needs if "extra ==" not in need]
                record["installer"] = (distribution.read_text("INSTALLER") or "").strip()
            every.append(record)
    return every


def leftovers() -> list[str]:
    """Return folders that pip leaves when it is interrupted (`~orch`), by name."""
    folders = []
    for place in _folders():
        with contextlib.suppress(OSError):
            folders += [os.path.join(place, name) for name in os.listdir(place) if name.startswith("~")]
    return sorted(folders)


def origin(name: str) -> str | None:
    """Return the file or folder that `import name` would read, or None; nothing is executed."""
    for place in _folders():
        spec = importlib.machinery.PathFinder.find_spec(name, [place])
        if spec is not None and (spec.origin or spec.submodule_search_locations):
            return str(spec.origin or next(iter(spec.submodule_search_locations or ()), ""))
    return None


def shadows() -> list[str]:
    """Return files of the working folder that are imported instead of a package or of Python's own module."""
    try:
        here = Path.cwd()
    except OSError:
        return []
    places = [place for name in (*IMPORTED, *STANDARD) for place in (here / f"{name}.py", here / name / "__init__.py")]
    packages = {"site-packages", "dist-packages"}
    return [str(place) for place in places if place.is_file() and packages.isdisjoint(place.parts)]


def torch_version() -> dict[str, Any]:
    """Return torch's version and the CUDA or ROCm it was built for, read from torch/version.py without importing it."""
    place = origin("torch")
    if place is None:
        return {}
    try:
        text = (Path(place).parent / "version.py").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {"place": place}
    build = {"place": place}
    for key in ("__version__", "cuda", "hip"):
        value = re.search(rf"^{key}(?:\s*:[^=]+)?\s*=\s*'([^']*)'", text, re.MULTILINE)
        if value:
            build[key.strip("_")] = value[1]
    return build


def conda() -> dict[str, str]:
    """Return the packages of a conda environment that matter here, by name; empty where this is none."""
    versions = {}
    for record in sorted(Path(sys.prefix, "conda-meta").glob("*.json")):
        name, version, _ = [*record.stem.rsplit("-", 2), "", ""][:3]
        if name in ("python", "pytorch", "torchvision", "pytorch-cuda", "numpy", "opencv", "libopencv", "cudatoolkit"):
            versions[name] = version
    return versions


def _folders() -> list[str]:
    return [place or os.getcwd() for place in sys.path if not place.endswith(".zip")]
