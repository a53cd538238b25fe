"""Data workers that reach a limit of the machine: files, threads, memory, shared memory; and a training that dies."""

from __future__ import annotations

import io
import mmap
import os
import resource
import signal
from pathlib import Path
from typing import Any

from ocrlab.fault_lab.dataloader import Pages, Slow, epoch, train
from ocrlab.fault_lab.fault import ALL, Fault
from ocrlab.fault_lab.setup import (
    address_space,
    drop_root,
    few_files,
    folder,
    join,
    limit,
    small_disk,
    small_group,
    soon,
    torch,
)


def prepare_files(worker: int) -> None:
    few_files(spare=2)


def collect_pages() -> None:
    from torch.utils.data import DataLoader

    limit(resource.RLIMIT_NOFILE, 72)
    batches = list(DataLoader(range(400), batch_size=1, num_workers=1))  # type: ignore[arg-type]
    print(len(batches))


def prepare_threads(worker: int) -> None:
    drop_root()
    limit(resource.RLIMIT_NPROC, 1)


class Large(Pages):
    """A page of 8 GB in a worker that may have a quarter of one more than it has."""

    def load_page(self, index: int) -> None:
        address_space(256 << 20)
        torch.zeros(2 << 30)


class Hoarding(Pages):
    """Pages that are kept decoded, in a worker of a small control group."""

    def __init__(self, group: Path) -> None:
        self.group = group

    def load_page(self, index: int) -> None:
        join(self.group)
        pages = []
        while True:
            pages.append(bytearray(os.urandom(1 << 20) * 8))


def train_hoarding() -> None:
    train(lambda: Hoarding(small_group("memory", 100 << 20)))


class Wide(Pages):
    """Pages of 12 MB each."""

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(3, 1024, 1024)


def train_wide() -> None:
    small_disk("/dev/shm", "16m")
    train(Wide)


class Mapped(Pages):
    """Pages in one mapped file, which another job writes anew."""

    def __init__(self) -> None:
        self.place = folder() / "pages.bin"
        self.place.write_bytes(bytes(1 << 20))

    def load_page(self, index: int) -> None:
        with self.place.open("r+b") as file:
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            file.truncate(0)
            io.BytesIO(pages[: 1 << 16])


def train_leaving() -> None:
    """The training itself is killed while its workers wait for it."""
    import torch.utils.data

    soon(2.0, lambda: os.kill(os.getpid(), signal.SIGKILL))
    many: list[Any] = [Slow()] * 100
    train(lambda: torch.utils.data.ConcatDataset(many), shuffle=True)


FILES, THREADS, OOM = ("host.fd_limit",), ("host.thread_limit",), ("host.oom_kill",)
ROOT, GROUP = ("root",), ("root", "cgroup")
CUT = ("loader.worker_crash", "data.corrupt")
FAULTS = (
    epoch("worker_threads", "no thread in a worker", "failed", THREADS, Pages, worker_init_fn=prepare_threads),
    Fault("worker_oom", "a worker out of memory", "failed", OOM, train_hoarding, GROUP, ALL),
    epoch("worker_files", "no descriptors in a worker", "hung", FILES, Pages, worker_init_fn=prepare_files),
    Fault("kept_batches", "keeps every batch", "failed", FILES, collect_pages, (), ALL),
    epoch("worker_memory", "no memory in a worker", "failed", ("host.alloc_fail",), Large),
    Fault("worker_shm", "batches larger than /dev/shm", "failed", ("host.shm",), train_wide, ROOT, ALL),
    epoch("worker_mapped", "a mapped file that was cut", "failed", CUT, Mapped),
    Fault("trainer_killed", "SIGKILL to the training", "killed", ("ext.signal",), train_leaving, (), ALL),
)
