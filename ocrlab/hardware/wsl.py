"""WSL2, where the GPU belongs to Windows: how to recognise it, and what is limited there. Only reads files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ocrlab.hardware.system_files import memory_fields, read_text

LIBRARIES = "usr/lib/wsl/lib"  # where Windows puts its driver's Linux half
# Where a Linux display driver puts its libcuda, which shadows Windows's and must not be there.
LINUX_DRIVERS = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/local/cuda/compat")


def facts(root: str = "/") -> dict[str, Any]:
    """Return whether this is WSL, and if so its kernel, /dev/dxg, the libcuda files and memory."""
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
        "windows_folder": os.getcwd().startswith("/mnt/") if root == "/" else False,
    }
