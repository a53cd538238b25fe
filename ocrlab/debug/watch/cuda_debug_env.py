"""The switches that make CUDA errors precise, what each costs, and what none of them does.

Sources: CUDA C++ programming guide (environment variables, error log management), cuda-gdb manual (GPU core dumps).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

DUMP_CONTENTS = "skip_global_memory,skip_shared_memory,skip_local_memory,skip_abort"


def switches(folder: Path) -> dict[str, tuple[str, str]]:
    """Return value and purpose of each environment variable by its name, with core dumps in `folder`."""
    dump, pipe = str(folder / "cuda-core-%p"), str(folder / "cuda-pipe-%p")
    return {
        "CUDA_LAUNCH_BLOCKING": ("1", "an error is raised at the call that made it; every launch waits, much slower"),
        "TORCH_SHOW_CPP_STACKTRACES": ("1", "C++ frames below an error; seconds, only when one is raised"),
        "CUDA_LOG_FILE": ("stderr", "the driver says in words what it refused, from driver 575 on; free"),
        "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": ("1", "a core dump of the GPU for cuda-gdb; seconds at the error"),
        "CUDA_COREDUMP_FILE": (dump, "where that goes"),
        "CUDA_COREDUMP_GENERATION_FLAGS": (DUMP_CONTENTS, "small dumps, and no abort: the program reports its error"),
        "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": ("1", "a dump of a kernel that hangs, when asked for; free"),
        "CUDA_COREDUMP_PIPE": (pipe, "write a byte into it to ask"),
    }


def environment(folder: Path, user: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set; what somebody has set already stays as it is, launch blocking excepted."""
    wanted = switches(folder).items()
    return {name: value for name, (value, _) in wanted if name not in user or name == "CUDA_LAUNCH_BLOCKING"}


def words(folder: Path) -> str:
    """Return in a few lines what is switched on, what it costs, and what it does not do."""
    return "\n".join(
        [
            "CUDA debugging is on:",
            *(f"  {name}={value}  {what}" for name, (value, what) in switches(folder).items()),
            "  TORCH_USE_CUDA_DSA is not set: it is a flag of the build, and does nothing in stock wheels.",
            "  Launches that wait hide races: an error that is gone now depends on timing.",
        ]
    )
