"""Signals from outside: an operator, a terminal that is closed, a scheduler, a limit of CPU time."""

from __future__ import annotations

import os
import resource
import signal
import sys
from functools import partial

from ocrlab.fault_lab.fault import Fault
from ocrlab.fault_lab.setup import later, limit


def train(steps: int = 1 << 60) -> None:
    """Work until somebody stops it."""
    import random

    weight = 0.0
    for step in range(steps):
        weight += random.random() - 0.5
        if step % 1_000_000 == 0:
            print(f"step {step} weight {weight:.3f}", flush=True)


def train_until(number: int, words: str = "") -> None:
    """Train until another process sends a signal, which may say something to the same terminal first."""
    parent = os.getpid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what is in the background without it

    def send() -> None:
        if words:
            os.write(sys.stderr.fileno(), words.encode())
        os.kill(parent, number)

    later(1.0, send)
    train()


def train_limited() -> None:
    limit(resource.RLIMIT_CPU, 1)
    train()


NOTICE = "slurmstepd: error: *** {} ON node07 CANCELLED AT 2024-05-01T02:00:07 DUE TO {} ***\n"
TIME_LIMIT = NOTICE.format("STEP 417203.0", "TIME LIMIT")
EXT, SCHEDULER = ("ext.signal",), ("scheduler.kill", "ext.signal")
FAULTS = (
    Fault("sigterm", "somebody ends it", "killed", EXT, partial(train_until, signal.SIGTERM)),
    Fault("sighup", "its terminal is closed", "killed", EXT, partial(train_until, signal.SIGHUP)),
    Fault("sigint", "somebody interrupts it", "killed", EXT, partial(train_until, signal.SIGINT)),
    Fault("cpu_limit", "uses up its CPU time", "killed", EXT, train_limited),
    Fault(
        "time_limit", "a scheduler's time limit", "killed", SCHEDULER, partial(train_until, signal.SIGTERM, TIME_LIMIT)
    ),
)
