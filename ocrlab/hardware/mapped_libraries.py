"""Libraries that a process has really mapped, and those of which it has two: the classic way to a broken cuDNN.

Source: /proc/PID/maps in proc(5).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ocrlab.records import Reading

NAME = re.compile(r"^(?P<soname>.+?\.so)(?:\.(?P<version>\d[\w.]*))?$")
BUILD = re.compile(r"^(?P<stem>lib\w+?)-[0-9a-f]{8}(?P<rest>\.so.*)$")  # auditwheel marks what it bundles with a hash
FAMILIES = {
    "libcudart": "CUDA runtime",
    "libcublas": "cuBLAS",
    "libcublasLt": "cuBLAS",
    "libcudnn": "cuDNN",
    "libnccl": "NCCL",
    "libcuda": "CUDA driver",
    "libgomp": "GNU OpenMP",
    "libiomp5": "Intel OpenMP",
    "libomp": "LLVM OpenMP",
    "libtorch_cpu": "torch",
    "libtorch_cuda": "torch CUDA",
    "libstdc++": "C++ runtime",
}
OPENMP = {"GNU OpenMP", "Intel OpenMP", "LLVM OpenMP"}


@dataclass(frozen=True)
class Library:
    """One mapped file; `version` is what follows .so in the name of the file itself, empty where nothing does."""

    path: str
    soname: str
    version: str


def libraries(pid: int | str = "self", root: Path = Path("/")) -> Reading:
    """Return the shared libraries that a process has mapped, as a list of Library in order of their paths."""
    try:
        text = (root / f"proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return Reading("libraries", missing=f"/proc/{pid}/maps cannot be read: {error.strerror}")
    paths = {line.split(None, 5)[5].removesuffix(" (deleted)") for line in text.splitlines() if line.count("/")}
    mapped = [library for path in sorted(paths) if (library := _library(path))]
    return Reading("libraries", mapped)


def mixed(mapped: list[Library]) -> dict[str, list[Library]]:
    """Return what is there twice, by the name people use (cuDNN): other copies or versions of one library.

    Two kinds of OpenMP in one process count as mixed too: they fight for the cores, and fork hangs with either.
    """
    groups: dict[str, dict[str, Library]] = {}
    for library in mapped:
        stem = library.soname.removesuffix(".so")
        if stem in FAMILIES:
            groups.setdefault(stem, {})[os.path.realpath(library.path)] = library
    twice = {FAMILIES[stem]: list(copies.values()) for stem, copies in groups.items() if len(copies) > 1}
    openmp = [library for stem, copies in groups.items() if FAMILIES[stem] in OPENMP for library in copies.values()]
    if len({library.soname for library in openmp}) > 1:
        twice["OpenMP"] = openmp
    majors = {_major(library) for library in mapped if library.soname.startswith("libcudnn")} - {""}
    if len(majors) > 1:
        twice["cuDNN"] = [library for library in mapped if library.soname.startswith("libcudnn")]
    return twice


def _library(path: str) -> Library | None:
    name = os.path.basename(path)
    bundled = BUILD.match(name)
    match = NAME.match(bundled["stem"] + bundled["rest"] if bundled else name)
    return Library(path, match["soname"], match["version"] or "") if match else None


def _major(library: Library) -> str:
    return library.version.partition(".")[0]
