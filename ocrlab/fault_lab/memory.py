"""Host memory: refused, used up, or taken back by the kernel."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from ocrlab.fault_lab.fault import ALL, Fault
from ocrlab.fault_lab.setup import address_space, join, later, small_group, torch


def allocate_batch() -> None:
    import torch

    address_space(1 << 30)
    torch.empty(20 << 30, dtype=torch.uint8)


def allocate_pairs() -> None:
    boxes = 30_000_000
    torch.empty(boxes, boxes)


def read_pages() -> None:
    address_space(200 << 20)
    pages = []
    for page in range(1000):
        pages.append(bytearray(4 << 20))
        if page % 16 == 0:
            print(f"read {page} pages", flush=True)


def hold(size: int) -> list[bytes]:
    """Fill memory with what cannot be shared or compressed."""
    return [os.urandom(1 << 20) for _ in range(size)]


def cache_pages() -> None:
    join(small_group("memory", 120 << 20))
    pages: list[bytes] = []
    for step in range(100):
        pages += hold(8)
        print(f"step {step}: {len(pages)} pages in the cache", flush=True)


def prepare(task: tuple[int, Path]) -> int:
    page, group = task
    if page == 5:
        join(group)
        hold(400)
    return page


def prepare_pages() -> None:
    group = small_group("memory", 60 << 20)
    context = multiprocessing.get_context(multiprocessing.get_start_method())
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        print(sum(pool.map(prepare, [(page, group) for page in range(16)])))


def prepare_in_pool() -> None:
    group = small_group("memory", 60 << 20)
    with multiprocessing.Pool(2) as pool:
        print(sum(pool.imap_unordered(prepare, [(page, group) for page in range(16)])))


def convert_pages() -> None:
    group = small_group("memory", 60 << 20)
    code = "import os; pages = [os.urandom(1 << 20) for _ in range(400)]"
    subprocess.run([sys.executable, "-c", code], check=True, preexec_fn=lambda: join(group))


def wait_for_pages() -> Any:
    net, parent = torch.nn.Linear(64, 64), os.getpid()
    later(1.0, lambda: os.kill(parent, signal.SIGKILL))
    while True:
        net(torch.rand(64, 64)).sum().backward()


ALLOC, OOM = ("host.alloc_fail",), ("host.oom_kill",)
ABSURD = (*ALLOC, "gpumem.absurd_size")
ROOT = ("root", "cgroup")
FAULTS = (
    Fault("address_space", "torch asks for more than the limit", "failed", ALLOC, allocate_batch),
    Fault("absurd_tensor", "all pairs of 30 million boxes", "failed", ABSURD, allocate_pairs),
    Fault("memory_error", "keeps pages until Python has no more", "failed", ALLOC, read_pages),
    Fault("oom_main", "caches pages in a small control group", "killed", OOM, cache_pages, ROOT),
    Fault("oom_executor", "a process of an executor out of memory", "failed", OOM, prepare_pages, ROOT, ALL),
    Fault("oom_pool", "a process of a pool out of memory", "hung", OOM, prepare_in_pool, ROOT, ("fork",)),
    Fault("oom_program", "a started program out of memory", "failed", OOM, convert_pages, ROOT),
    Fault("killed_main", "SIGKILL by an operator", "killed", ("ext.signal",), wait_for_pages),
)
