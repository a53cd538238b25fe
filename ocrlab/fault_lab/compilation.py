"""Compilers that never return, or are not there."""

from __future__ import annotations

import os

from ocrlab.fault_lab.fault import Fault
from ocrlab.fault_lab.setup import folder, torch


def compiler(script: str) -> None:
    """Make a compiler of a shell script and let torch find it."""
    place = folder()
    program = place / "g++"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    os.environ.update(CXX=str(program), TORCHINDUCTOR_CACHE_DIR=str(place / "cache"), TORCHINDUCTOR_COMPILE_THREADS="1")


def train() -> None:
    net = torch.compile(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()))
    print(net(torch.rand(4, 8)).sum().item())


def train_compiled() -> None:
    compiler('case "$*" in *--version*) echo "g++ 13.2.0" ;; *) sleep 100000 ;; esac')
    train()


COMPILE, NEEDS = ("hang.compile",), ("compiler",)
FAULTS = (Fault("compile", "torch.compile with a compiler that hangs", "hung", COMPILE, train_compiled, NEEDS),)
