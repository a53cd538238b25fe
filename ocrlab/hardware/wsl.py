"""WSL2, where the GPU is Windows's: what tells it from Linux, and what is limited there. Only reads files."""

from __future__ import annotations

import configparser
import os
import re
from pathlib import Path
from typing import Any

LIBRARIES = "usr/lib/wsl/lib"  # where Windows puts its driver's Linux half


def facts(root: str = "/") -> dict[str, Any]:
    """Return whether this is WSL, and if so its kernel, /dev/dxg, the libcuda files, memory, and .wslconfig."""
    top = Path(root)
    release = _read(top / "proc/sys/kernel/osrelease") or _read(top / "proc/version")
    if not re.search("microsoft", release, re.IGNORECASE):
        return {"wsl": 0}
    return {
        "wsl": 2 if "WSL2" in release or re.search(r"microsoft-standard", release) else 1,
        "release": release.split()[0] if release else "",
        "dxg": (top / "dev/dxg").exists(),
        "libcuda": sorted(str(path) for path in (top / LIBRARIES).glob("libcuda.so*")),
        "foreign": foreign(top),
        "memory": _number(_read(top / "proc/meminfo"), r"MemTotal:\s+(\d+) kB") * 1024,
        "swap": _number(_read(top / "proc/meminfo"), r"SwapTotal:\s+(\d+) kB") * 1024,
        "config": config(top),
        "windows_folder": os.getcwd().startswith("/mnt/") if root == "/" else False,
    }


def foreign(top: Path) -> list[str]:
    """Return libcuda files of a Linux display driver, which shadow Windows's and must not be there."""
    places = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/local/cuda/compat")
    paths = [path for place in places for path in (top / place).glob("libcuda.so*")]
    return sorted(str(path) for path in paths if LIBRARIES not in os.path.realpath(path))


def config(top: Path) -> dict[str, str]:
    """Return the section [wsl2] of the .wslconfig of a Windows user, where one can be read."""
    for file in sorted((top / "mnt/c/Users").glob("*/.wslconfig")):
        parser = configparser.ConfigParser(strict=False, interpolation=None)
        try:
            parser.read_string(file.read_text(encoding="utf-8-sig", errors="replace"))
            return dict(parser["wsl2"]) if parser.has_section("wsl2") else {}
        except (OSError, configparser.Error):
            continue
    return {}


def _number(text: str, pattern: str) -> int:
    match = re.search(pattern, text)
    return int(match[1]) if match else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
