"""Whether the CUDA context of a replay is still alive.

A kernel that is launched without a check fails in silence, and a library reports it in its own words (cuDNN:
CUDNN_STATUS_EXECUTION_FAILED), which it also says of errors that a context survives. So the device is asked.

Source: the CUDA runtime's cudaDeviceSynchronize, which returns the error of any kernel before it.
"""

from __future__ import annotations

import torch

from ocrlab.debug.replay import fault_match

DEEPEST = 8  # errors in a chain


def wait() -> bool:
    """Wait for all kernels and tell whether that could be done: CUDA is in use, and no CUDA graph is being captured.

    Raises what a kernel has failed with since the last call, which the question about the graph may already do.
    """
    if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
        return False
    torch.cuda.synchronize()
    return True


def named_cause(error: BaseException | None) -> BaseException | None:
    """Return the error, or the cause of it, that shows by itself that the context is dead: it names a kernel's end."""
    for _ in range(DEEPEST):
        if error is None or fault_match.ends_context({"exception": str(error)}):
            return error
        error = error.__cause__ or error.__context__
    return None


def cause_of_death(error: BaseException | None = None) -> BaseException | None:
    """Return the error that the context has died of, None while it is alive; `error` is the one just raised.

    Where that leaves it open the device is asked. The caller has to remember the answer, as nothing may be asked of a
    dead context.
    """
    if (named := named_cause(error)) is not None:
        return named
    try:
        wait()
    except Exception as pending:
        return pending
    return None
