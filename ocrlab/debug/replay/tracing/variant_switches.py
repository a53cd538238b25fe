"""What a cell of the replay's matrix switches in the process that replays: number format, libraries, threads, waiting.

What a variable of the environment does is set by who starts the process. Sources: PyTorch's notes on numerical
accuracy, torch.backends, torch.amp, torch.compiler.set_stance.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook

from ocrlab.debug.replay.tracing.backward_trace import BackwardTrace


def prepare(variant: Mapping[str, Any]) -> None:
    """Switch what a cell asks for, for the rest of this process: fp32, threads, mkldnn, cudnn, anomaly, eager, sync."""
    if variant.get("eager") or variant.get("trace"):
        with contextlib.suppress(AttributeError, RuntimeError):  # before torch 2.6
            torch.compiler.set_stance("force_eager")
    if variant.get("fp32"):
        _without_autocast()
    if variant.get("threads"):
        torch.set_num_threads(int(variant["threads"]))
    if variant.get("mkldnn") is False:
        torch.backends.mkldnn.set_flags(False)
    if variant.get("cudnn") is False:
        torch.backends.cudnn.enabled = False
    if variant.get("anomaly"):
        torch.autograd.set_detect_anomaly(True)
    if variant.get("sync") and torch.cuda.is_available():
        _waiting()


def _without_autocast() -> None:
    original = torch.autocast.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args[:2], **{**kwargs, "enabled": False})

    torch.autocast.__init__ = init  # type: ignore[method-assign]


def _waiting() -> None:
    """Wait for the device after each module, forward, and after each node of the graph, backward."""

    def wait(*_: Any) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    register_module_forward_hook(wait)
    BackwardTrace(wait, wait, wait).hook({})
