"""Programs that wait for ever."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import multiprocessing
import os
import queue
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

from ocrlab.fault_lab.fault import ALL, Fault
from ocrlab.fault_lab.native_code import SOURCE
from ocrlab.fault_lab.setup import folder, library


def move(first: Any, second: Any) -> None:
    with first:
        time.sleep(0.3)
        with second:
            pass


def move_pages() -> None:
    index, cache = threading.Lock(), threading.Lock()
    mover = threading.Thread(target=move, args=(cache, index))
    mover.start()
    move(index, cache)


def update_cache() -> None:
    lock = threading.Lock()
    with lock:
        refresh(lock)


def refresh(lock: Any) -> None:
    with lock:
        pass


def drain() -> None:
    pages: queue.Queue[int] = queue.Queue()
    for page in range(4):
        pages.put(page)
    while not pages.empty():
        pages.get()
    pages.join()


def read_page(pages: Any) -> None:
    raise SystemExit(f"no page in {type(pages).__name__}")


def collect() -> None:
    pages: Any = multiprocessing.Queue()
    reader = multiprocessing.Process(target=read_page, args=(pages,))
    reader.start()
    print("first page", pages.get())


def search_threshold() -> None:
    low, high = 0.0, 1.0
    while high - low > 0:
        middle = (low + high) / 2
        if middle * middle < 0.3:
            low = middle
        else:
            high = middle


def settle_freely() -> None:
    ctypes.CDLL(str(library(SOURCE, "imageops.c", "-O0"))).settle(0)


def settle_holding() -> None:
    ctypes.PyDLL(str(library(SOURCE, "imageops.c", "-O0"))).settle(0)


def parse_total() -> None:
    re.match(r"(\w+\s?)+:\s*\d+$", "total amount payable including service charge and rounding of the receipt")


def confirm() -> None:
    """Ask a question, where a terminal is that nobody looks at."""
    readable, _ = os.pipe()
    os.dup2(readable, 0)
    if input("runs/ exists. Overwrite? [y/N] ") != "y":
        raise SystemExit(1)


def pause() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def keep_locked(path: Path) -> None:
    """Hold a lock on a file from another process, which never goes on."""
    if os.fork() == 0:
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            time.sleep(3600)
    time.sleep(0.3)


def build() -> None:
    """Build an extension that a rank which is stuck builds too; torch locks by flock(2), older ones by the file."""
    from torch.utils import cpp_extension

    place = folder()
    keep_locked(place / "lock")
    (place / "nms.cpp").write_text("#include <torch/extension.h>\n")
    cpp_extension.load("nms", [str(place / "nms.cpp")], build_directory=str(place))


def build_once() -> None:
    """Build as libraries do that take torch's older lock: a file that a build which was killed leaves behind."""
    from torch.utils.file_baton import FileBaton

    place = folder()
    (place / "lock").touch()
    baton = FileBaton(str(place / "lock"))
    if not baton.try_acquire():
        baton.wait()


def lock_index() -> None:
    place = folder() / "index.lock"
    keep_locked(place)
    with place.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


async def receive() -> None:
    arrived = asyncio.Event()
    await arrived.wait()


def serve() -> None:
    asyncio.run(receive())


def work(ready: Any, done: Any) -> None:
    done.wait()
    ready.set()


def start_reader() -> None:
    ready, done = multiprocessing.Event(), multiprocessing.Event()
    reader = multiprocessing.Process(target=work, args=(ready, done))
    reader.start()
    ready.wait()


DEADLOCK, STOPPED, BUILD = ("hang.deadlock",), ("hang.stopped",), ("hang.build_lock",)
FAULTS = (
    Fault("lock_order", "two locks in two orders", "hung", DEADLOCK, move_pages),
    Fault("lock_twice", "takes its own lock again", "hung", DEADLOCK, update_cache),
    Fault("queue_join", "joins a queue without task_done", "hung", DEADLOCK, drain),
    Fault("queue_empty", "waits for a process that has left", "hung", DEADLOCK, collect, (), ALL),
    Fault("mutual_events", "two processes wait for each other", "hung", DEADLOCK, start_reader, (), ALL),
    Fault("loop", "a search that does not converge", "hung", DEADLOCK, search_threshold),
    Fault("native_loop", "a loop in C", "hung", DEADLOCK, settle_freely, ("compiler",)),
    Fault("native_loop_gil", "a loop in C with the GIL held", "hung", DEADLOCK, settle_holding, ("compiler",)),
    Fault("regex", "a regular expression that backtracks", "hung", DEADLOCK, parse_total),
    Fault("file_lock", "a file lock that a child holds", "hung", DEADLOCK, lock_index),
    Fault("event_loop", "an event that nobody sets", "hung", DEADLOCK, serve),
    Fault("question", "waits for an answer", "hung", STOPPED, confirm),
    Fault("stopped", "SIGSTOP", "hung", STOPPED, pause),
    Fault("build_lock", "a build that another process has locked", "hung", BUILD, build),
    Fault("build_baton", "a left-over lock of a build", "hung", BUILD, build_once),
)
