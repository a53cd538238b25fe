"""CUDA debugging: the switch that makes launches synchronous, and the `[CUDA Info]` lines at the start of a run.

Nothing here imports torch before it has to: the switch must be set before CUDA starts.
"""

from __future__ import annotations

import os

from ocrlab.config.schema import Config

FLAGS = ("CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "DEBUG_CUDA")
GIB = 2**30


def wanted(config: Config) -> bool:
    """Return True if `runtime.debug_cuda` is true or the environment says DEBUG_CUDA=1."""
    return config.runtime.debug_cuda or os.environ.get("DEBUG_CUDA", "").lower() in ("1", "true", "yes", "on")


def block_launches() -> None:
    """Make every launch wait for its kernel, so that an error is raised where it was made; call before CUDA starts."""
    os.environ["CUDA_LAUNCH_BLOCKING"] = "1"


def lines() -> list[str]:
    """Return the `[CUDA Info]` lines: versions, devices (or the reason why there is none), and environment flags."""
    return [f"[CUDA Info] {line}" for line in (*_versions(), *_devices(), *_flags())]


def _versions() -> list[str]:
    import torch

    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return [
        f"PyTorch version: {torch.__version__}",
        f"CUDA version of the wheel: {torch.version.cuda or 'none, this torch was built for the CPU'}",
        f"cuDNN version: {cudnn or 'none'}",
    ]


def _devices() -> list[str]:
    import torch

    if not torch.cuda.is_available():
        return ["CUDA available: False", "no CUDA device"]
    lines = ["CUDA available: True"]
    for index in range(torch.cuda.device_count()):
        try:
            device = torch.cuda.get_device_properties(index)
        except (RuntimeError, AssertionError) as error:  # a device that is listed may still refuse to answer
            lines.append(f"device {index}: gives no answer: {str(error).splitlines()[0]}")
            continue
        memory = f"{device.total_memory / GIB:.1f} GiB"
        lines.append(f"device {index}: {device.name}, capability {device.major}.{device.minor}, {memory}")
    return lines


def _flags() -> list[str]:
    return [f"{name}={os.environ.get(name, '(not set)')}" for name in FLAGS]
