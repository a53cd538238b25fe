"""Native code that dies: the process is gone, and Python could not say a word."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import sys
from functools import partial
from typing import Any

from ocrlab.fault_lab.fault import Fault
from ocrlab.fault_lab.setup import folder, library

SOURCE = r"""
#include <assert.h>
#include <stdlib.h>
#include <string.h>
int decode(const int *row, int at) { return row[at]; }
int scale(int width, int height) { return width / height; }
int dot(const int *row, int at) {
#if defined(__x86_64__)
    __asm__ volatile("ud2");
#else
    __asm__ volatile(".inst 0x00000000");
#endif
    return row ? row[at] : 0;
}
int crop(int width) { assert(width > 0); return width; }
int pack(int size) {
    char *line = malloc(2000), *next = malloc(2000);
    memset(line, 255, size);
    free(next);
    free(line);
    return size;
}
int fill(int x, int y) { volatile char seen[512]; seen[0] = x; return fill(x + 1, y) + fill(x, y + 1) + seen[0]; }
int settle(int step) { volatile int done = 0; while (!done) step += !done; return step; }
"""
THREAD = r"""
#include <stdexcept>
#include <thread>
extern "C" int prefetch(int page) {
    std::thread reader([page] { if (page > 3) throw std::runtime_error("page index 4 is not in the archive"); });
    reader.join();
    return page;
}
"""


def call(function: str, arguments: tuple[int | None, ...]) -> None:
    """Call a function of a library of picture operations, compiled on the spot."""
    imageops = ctypes.CDLL(str(library(SOURCE, "imageops.c", "-D_FORTIFY_SOURCE=0", "-O0")))
    getattr(imageops, function)(*arguments)


def decode_loudly() -> None:
    faulthandler.enable()
    call("decode", (None, 0))


def prefetch_pages() -> None:
    reader = ctypes.CDLL(str(library(THREAD, "prefetch.cpp", "-pthread")))
    for page in range(8):
        reader.prefetch(page)


def read_index() -> None:
    place = folder() / "pages.idx"
    place.write_bytes(bytes(1 << 20))
    with place.open("r+b") as file:
        index = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        file.truncate(4096)  # a second job that writes the index anew
        print(sum(index[at] for at in range(0, 1 << 20, 4096)))


class Node:
    """A layout tree; a page that is its own parent."""

    def __init__(self) -> None:
        self.parts: list[Any] = []

    def __repr__(self) -> str:
        return f"Node({sorted(self.parts, key=repr)})"


def print_layout() -> None:
    sys.setrecursionlimit(10**9)
    page = Node()
    page.parts.append(page)
    print(page)


SEGV, ABORT, ISA = ("native.segv",), ("native.abort",), ("build.cpu_isa",)
NEEDS = ("compiler",)
FAULTS = (
    Fault("segv", "reads through a null pointer", "killed", SEGV, partial(call, "decode", (None, 0)), NEEDS),
    Fault("segv_told", "the same, faulthandler is on", "killed", SEGV, decode_loudly, NEEDS),
    Fault("divide", "divides by zero in C", "killed", (*SEGV, *ABORT), partial(call, "scale", (640, 0)), NEEDS),
    Fault("opcode", "an opcode that the CPU does not know", "killed", ISA, partial(call, "dot", (None, 0)), NEEDS),
    Fault("assertion", "an assertion in C", "killed", ABORT, partial(call, "crop", (-3,)), NEEDS),
    Fault("heap", "writes past a heap block", "killed", ABORT, partial(call, "pack", (2100,)), NEEDS),
    Fault("thread_exception", "a C++ exception in a thread", "killed", ABORT, prefetch_pages, NEEDS),
    Fault("c_recursion", "recursion without an end in C", "killed", SEGV, partial(call, "fill", (0, 0)), NEEDS),
    Fault("py_recursion", "recursion without an end in Python", "killed", SEGV, print_layout),
    Fault("mapped_file", "a mapped file that was cut", "killed", ("data.corrupt", *SEGV), read_index),
)
