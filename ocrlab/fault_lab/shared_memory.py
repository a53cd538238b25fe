"""/dev/shm used up, outside of a data loader."""

from __future__ import annotations

from multiprocessing import shared_memory

from ocrlab.fault_lab.fault import Fault
from ocrlab.fault_lab.setup import small_disk, torch


def share_pages() -> None:
    small_disk("/dev/shm", "4m")
    pages = shared_memory.SharedMemory(create=True, size=16 << 20)
    buffer = memoryview(pages.buf or b"")
    for at in range(0, pages.size, 4096):
        buffer[at] = 1


def share_weights() -> None:
    small_disk("/dev/shm", "4m")
    torch.nn.Linear(2000, 2000).share_memory()


SHM, ROOT = ("host.shm",), ("root",)
FAULTS = (
    Fault("shm_block", "fills a block of shared memory", "killed", SHM, share_pages, ROOT),
    Fault("shm_weights", "shares weights", "failed", SHM, share_weights, ROOT),
)
