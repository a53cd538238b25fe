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
    import torch

    built, cudnn = torch.version.cuda, torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    texts = [f"PyTorch version: {torch.__version__}"]
    texts.append(f"CUDA version of the wheel: {built or 'none, this torch was built for the CPU'}")
    texts.append(f"cuDNN version: {cudnn or 'none'}")
    texts.append(f"CUDA available: {torch.cuda.is_available()}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    texts += [] if count else ["no CUDA device"]
    for index in range(count):
        try:
            device = torch.cuda.get_device_properties(index)
        except (RuntimeError, AssertionError) as error:  # a device that is listed may still refuse to answer
            texts.append(f"device {index}: gives no answer: {str(error).splitlines()[0]}")
            continue
        memory = f"{device.total_memory / GIB:.1f} GiB"
        texts.append(f"device {index}: {device.name}, capability {device.major}.{device.minor}, {memory}")
    texts += [f"{name}={os.environ.get(name, '(not set)')}" for name in FLAGS]
    return [f"[CUDA Info] {text}" for text in texts]
