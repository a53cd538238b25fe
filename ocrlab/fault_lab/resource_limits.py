"""Limits of open files, threads and processes."""

from __future__ import annotations

import os
import resource
import subprocess
import threading
import time
from typing import Any

from ocrlab.fault_lab.fault import Fault
from ocrlab.fault_lab.setup import drop_root, few_files, folder, join, limit, small_group


def open_pages() -> None:
    place = folder()
    limit(resource.RLIMIT_NOFILE, 64)
    pages = []
    for page in range(100):
        pages.append((place / f"{page:04d}.txt").open("w"))


def start_converters() -> None:
    place = folder()
    few_files(spare=1)
    for page in range(20):
        subprocess.run(["true", str(place / f"{page:04d}.tif")], stdout=subprocess.PIPE, check=True)


def share_by_name() -> None:
    import torch
    import torch.multiprocessing as multiprocessing

    multiprocessing.set_sharing_strategy("file_system")
    few_files(spare=0)
    torch.rand(100).share_memory_()


def wait() -> None:
    time.sleep(60)


def start_readers() -> None:
    drop_root()
    limit(resource.RLIMIT_NPROC, 1)
    for reader in range(8):
        threading.Thread(target=wait, name=f"reader-{reader}", daemon=True).start()


def fork_readers() -> None:
    drop_root()
    limit(resource.RLIMIT_NPROC, 1)
    for _ in range(8):
        if os.fork() == 0:
            os._exit(0)


def start_many_readers() -> None:
    join(small_group("pids", 12))
    readers: list[Any] = [threading.Thread(target=wait, daemon=True) for _ in range(20)]
    for reader in readers:
        reader.start()


GROUP = ("root", "cgroup")
FILES, THREADS = ("host.fd_limit",), ("host.thread_limit",)
FAULTS = (
    Fault("open_files", "keeps every page open", "failed", FILES, open_pages),
    Fault("open_pipes", "starts programs with no descriptor left", "failed", FILES, start_converters),
    Fault("shared_by_name", "shares a tensor with no descriptor left", "failed", FILES, share_by_name),
    Fault("threads", "starts threads past the limit of its user", "failed", THREADS, start_readers),
    Fault("processes", "forks past the limit of its user", "failed", THREADS, fork_readers),
    Fault("group_pids", "starts threads past its control group", "failed", THREADS, start_many_readers, GROUP),
)
