"""A short `ocrlab train` in this process, and its peak memory: one JSON line, bytes; on a CPU the resident peak."""

from __future__ import annotations

import contextlib
import json
import resource
import runpy
import sys

import torch

STEPS = ("trainer.max_steps=6", "trainer.val_every=6", "trainer.val_pages=1")

if __name__ == "__main__":
    sys.argv = ["ocrlab", "train", "--in-process", *sys.argv[1:], *STEPS]
    status: object = 0
    try:
        with contextlib.redirect_stdout(sys.stderr):
            runpy.run_module("ocrlab", run_name="__main__")
    except SystemExit as end:
        status = end.code
    if torch.cuda.is_initialized():
        peak = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    else:
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        peak = {"allocated": resident, "reserved": resident}
    print(json.dumps(peak), flush=True)
    sys.exit(int(bool(status)))
