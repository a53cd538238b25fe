"""WSL2, where the GPU belongs to Windows: how to recognise it, and what is limited there. Only reads files."""

from __future__ import annotations

import configparser
import os
import re
from pathlib import Path
from typing import Any

from ocrlab.hardware.system_files import memory_fields, read_text

LIBRARIES = "usr/lib/wsl/lib"  # where Windows puts its driver's Linux half
# Where a Linux display driver puts its libcuda, which shadows Windows's and must not be there.
LINUX_DRIVERS = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/local/cuda/compat")


def facts(root: str = "/") -> dict[str, Any]:
    """Return whether this is WSL, and if so its kernel, /dev/dxg, the libcuda files, memory, and .wslconfig."""
    top = Path(root)
    release = read_text(top / "proc/sys/kernel/osrelease") or read_text(top / "proc/version")
    if not re.search("microsoft", release, re.IGNORECASE):
        return {"wsl": 0}
    linux = [path for place in LINUX_DRIVERS for path in (top / place).glob("libcuda.so*")]
    memory = memory_fields(top / "proc/meminfo")
    return {
        "wsl": 2 if "WSL2" in release or re.search(r"microsoft-standard", release) else 1,
        "release": release.split()[0] if release else "",
        "dxg": (top / "dev/dxg").exists(),
        "libcuda": sorted(str(path) for path in (top / LIBRARIES).glob("libcuda.so*")),
        "foreign": sorted(str(path) for path in linux if LIBRARIES not in os.path.realpath(path)),
        "memory": memory.get("MemTotal", 0),
        "swap": memory.get("SwapTotal", 0),
        "config": config(top),
        "windows_folder": os.getcwd().startswith("/mnt/") if root == "/" else False,
    }


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
