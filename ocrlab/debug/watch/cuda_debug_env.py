"""The switches that make a CUDA error speak, what each costs, and what none of them does.

Sources: CUDA C++ programming guide (environment variables, error log management), cuda-gdb manual (GPU core dumps).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DUMP_CONTENTS = "skip_global_memory,skip_shared_memory,skip_local_memory,skip_abort"


@dataclass(frozen=True)
class Switch:
    """One environment variable: its value, what it brings and what it costs."""

    name: str
    value: str
    what: str


def switches(folder: Path) -> list[Switch]:
    """Return the switches, with core dumps in `folder`."""
    dump, pipe = str(folder / "cuda-core-%p"), str(folder / "cuda-pipe-%p")
    return [
        Switch(
            "CUDA_LAUNCH_BLOCKING", "1", "an error is raised at the call that made it; every launch waits, much slower"
        ),
        Switch("TORCH_SHOW_CPP_STACKTRACES", "1", "C++ frames below an error; seconds, only when one is raised"),
        Switch("CUDA_LOG_FILE", "stderr", "the driver says in words what it refused, from driver 575 on; free"),
        Switch("CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "1", "a core dump of the GPU for cuda-gdb; seconds at the error"),
        Switch("CUDA_COREDUMP_FILE", dump, "where that goes"),
        Switch(
            "CUDA_COREDUMP_GENERATION_FLAGS",
            DUMP_CONTENTS,
            "small dumps, and no abort: the program tells its own error",
        ),
        Switch("CUDA_ENABLE_USER_TRIGGERED_COREDUMP", "1", "a dump of a kernel that hangs, when asked for; free"),
        Switch("CUDA_COREDUMP_PIPE", pipe, "write a byte into it to ask"),
    ]


def environment(folder: Path, user: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set; what somebody has set already stays as it is, launch blocking excepted."""
    wanted = {switch.name: switch.value for switch in switches(folder)}
    return {name: value for name, value in wanted.items() if name not in user or name == "CUDA_LAUNCH_BLOCKING"}


def words(folder: Path) -> str:
    """Return in a few lines what is switched on, what it costs, and what it does not do."""
    lines = [f"  {switch.name}={switch.value}  {switch.what}" for switch in switches(folder)]
    lines += [
        "  TORCH_USE_CUDA_DSA is not set: it is a flag of the build, and does nothing in stock wheels.",
        "  Launches that wait hide races: an error that is gone now is one of timing.",
    ]
    return "\n".join(["CUDA debugging is on:", *lines])
