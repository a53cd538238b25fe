"""What one fault of the lab is."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ALL = ("fork", "spawn", "forkserver")


@dataclass(frozen=True)
class Fault:
    """A program that fails as a user's would: what it does, how it ends, and which cause ids name it, the best first.

    `ends` is failed (an exception), killed (a signal), hung (until somebody ends it) or healthy (slow, and works).
    `needs` names what a machine must have (root, cgroup, gpu, compiler, or a package); `start_methods` is empty where
    it does not matter how a process is started.
    """

    name: str
    does: str
    ends: str
    causes: tuple[str, ...]
    run: Callable[[], Any]
    needs: tuple[str, ...] = ()
    start_methods: tuple[str, ...] = ()
    family: str = ""  # the name of the file that the fault is in

    def record(self) -> dict[str, Any]:
        """Return everything but the function, ready for JSON."""
        names = ("name", "family", "does", "ends", "causes", "needs", "start_methods")
        values = {name: getattr(self, name) for name in names}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def lacks(self) -> str | None:
        """Return what this machine lacks to run it, or None."""
        return next(filter(None, (_lacks(need) for need in self.needs)), None)


def _lacks(need: str) -> str | None:
    """Return why one need is not met; a GPU is looked for without torch, which takes seconds to import."""
    if need == "root":
        return None if os.geteuid() == 0 and sys.platform == "linux" else "root on Linux"
    if need == "cgroup":
        return None if os.access("/sys/fs/cgroup", os.W_OK) and _controllers() else "a control group that it may make"
    if need == "gpu":
        return None if os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg") else "a CUDA device"
    if need == "compiler":
        return None if shutil.which("cc") and shutil.which("c++") else "a C and a C++ compiler"
    return None if shutil.which(need) or importlib.util.find_spec(need) else need


def _controllers() -> bool:
    paths = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/cgroup.subtree_control")
    return any(os.access(path, os.W_OK) for path in paths)
