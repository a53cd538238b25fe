"""A training of several ranks in which one of them goes wrong: `faulty_ranks.py FAULT RANK COUNT LOGS WORDS...`.

Started so, it is the launcher; torchrun starts it again as each rank. Nothing of the training is replaced: the fault
happens to the rank from outside or inside of its data set, at the given micro-batch.
"""

import ctypes
import os
import signal
import sys
import time
from typing import Any

import numpy as np

AT = 3  # the first crop of this micro-batch


def break_down(fault: str) -> None:
    """Do to this process what `fault` says."""
    if fault == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "sigsegv":
        ctypes.string_at(0)
    elif fault == "sigstop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "exception":
        raise ValueError("this page has no corner")
    elif fault == "bare":
        raise AssertionError
    elif fault == "memory":
        raise MemoryError("cannot allocate 8 GB")
    elif fault == "exit":
        os._exit(3)
    elif fault == "hang":
        while True:
            time.sleep(1)
    elif fault == "barrier":
        import torch.distributed

        torch.distributed.barrier()


def spoil(fault: str, rank: int) -> None:
    """Let the data set of one rank do it."""
    from ocrlab.data.dataset import Crops

    if int(os.environ["RANK"]) != rank:
        return
    load, count = Crops.__getitem__, 0

    def faulty(self: Crops, index: tuple[int, int]) -> Any:
        nonlocal count
        count += 1
        if count == 2 * AT + 1:
            print(f"now: {fault}", file=sys.stderr, flush=True)
            break_down(fault)
        crop = load(self, index)
        if fault == "shape" and count > 2 * AT:
            maps = type(crop[1])(*(v[:32, :32] if np.ndim(v) == 2 else v for v in vars(crop[1]).values()))
            return crop[0][:32, :32], maps, *crop[2:]
        return crop

    Crops.__getitem__ = faulty  # type: ignore[method-assign]


def main() -> int:
    fault, rank, *words = sys.argv[1:]
    if "RANK" in os.environ:
        from ocrlab.cli import main as ocrlab

        spoil(fault, int(rank))
        return ocrlab(["train", *words])
    from ocrlab.training.distributed import launch

    launch.PROGRAM = [__file__, fault, rank]
    return launch.main(words)


if __name__ == "__main__":
    sys.exit(main())
