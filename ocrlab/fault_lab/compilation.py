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


def build_extension() -> None:
    from torch.utils import cpp_extension

    compiler('case "$*" in *version*) echo "g++ (GCC) 13.2.0" ;; *) sleep 100000 ;; esac')
    place = folder()
    (place / "nms.cpp").write_text("#include <torch/extension.h>\n")
    cpp_extension.load("nms", [str(place / "nms.cpp")], build_directory=str(place))


COMPILE, NEEDS = ("hang.compile",), ("compiler",)
FAULTS = (
    Fault("compile", "torch.compile with a compiler that hangs", "hung", COMPILE, train_compiled, NEEDS),
    Fault("build", "an extension with a compiler that hangs", "hung", COMPILE, build_extension, (*NEEDS, "ninja")),
)
