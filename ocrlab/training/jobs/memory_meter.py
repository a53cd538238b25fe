"""The memory of this process while it trains: the most that each part of the training needed, and a limit for it.

`kind` says what is counted: "resident" what a control group would have to hold (memory without the files of libraries,
which the kernel can drop), "address" address space, as RLIMIT_AS counts it, "data" as RLIMIT_DATA does.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from pathlib import Path
from typing import Any

import torch

from ocrlab import run_folder
from ocrlab.hardware.processes import process_tree
from ocrlab.hardware.system_files import memory_fields
from ocrlab.training.auto_settings import keep_freed_memory

LOOK = 0.01  # seconds between two looks at what this process holds
LOOKS_AT_MACHINE = 5  # looks at this process for one at the memory of the machine
FAMILY = 25  # looks at this process for one at its workers
GROWN = 1 << 24  # bytes more than are on record: what the process holds is written again
SCARCE = 0.01  # of a machine's memory: where others leave less free, the process ends itself before the kernel does
YOUNG = 2.0  # seconds in which a process is not weighed yet
SHARES = ("Pss_Anon", "Pss_Shmem")  # of /proc/PID/smaps_rollup, Linux 5.4
LATE = ("ocrlab.losses.db_loss_numba", "ocrlab.data.target_maps_numba", "ocrlab.evaluation.postprocess.numba_kernels")


def import_late_modules() -> None:
    """Import what a training imports late, so that what imports need is not taken for what training needs."""
    for name in LATE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    keep_freed_memory()


class MemoryMeter:
    """Weighs this process and its workers from the `with` on; over `usable` bytes it records that and ends it."""

    def __init__(self, out: Path, usable: int | None = None, kind: str = "resident") -> None:
        self.out, self.usable, self.kind = out, usable, kind
        self.phase = "start"
        self.peaks: dict[str, int] = {}  # bytes, by part of the training
        self.device: dict[str, int] = {}  # of the CUDA device: reserved, outside, total
        self.settled: dict[str, Any] = {}
        self.later_pages = 0
        self.crops_a_second = 0.0
        self.base = self.now()
        self._workers = 0  # the most that they held
        self._peak = 0  # the most in this part
        self._most = self._written = 0  # bytes that it ever held, and of them what is on record
        self._cuda = False
        self._end = threading.Event()
        self._lock, self._file_lock = threading.Lock(), threading.Lock()

    def __enter__(self) -> MemoryMeter:
        self._reset()
        threading.Thread(target=self._watch, name="ocrlab scales", daemon=True).start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, _traceback: Any) -> None:
        self._end.set()
        if error is None:
            self.write(finished=True)
        elif out_of_memory(error):
            self.stop(0)
        else:
            self.write(error=f"{type(error).__name__}: {error}"[:500])

    def limit_device(self, accelerator: str) -> None:
        """Hold the allocator of the CUDA device to the limit, if that is where the training runs."""
        if accelerator != "cuda":
            return
        self._cuda = True
        free, total = torch.cuda.mem_get_info()
        self.device = {"total": total, "outside": total - free - torch.cuda.memory_reserved(), "reserved": 0}
        if self.usable is not None:
            torch.cuda.set_per_process_memory_fraction(min(1.0, max(0.0, self.usable / total)))
        torch.cuda.reset_peak_memory_stats()

    def mark(self, phase: str) -> None:
        """End a part of the training: its peak is the most since the last mark."""
        with self._lock:
            highest = self._counted(high=True) + (self._workers if self.kind == "resident" else 0)
            high = max(highest, self._peak)
            self.peaks[phase] = max(self.peaks.get(phase, 0), high)
            self._reset()
        if self._cuda:
            self.device["reserved"] = max(self.device["reserved"], torch.cuda.max_memory_reserved())
            self.device[phase] = torch.cuda.max_memory_allocated()
            torch.cuda.reset_peak_memory_stats()
        self.write()

    def now(self) -> int:
        """Return what this process holds now, in bytes, as the limit counts it."""
        return self._counted(high=False)

    def stop(self, usage: int) -> None:
        """Record that it does not fit, and end the process: a training at its limit is not asked to end itself."""
        self.write(over={"phase": self.phase, "held": usage or self._peak})
        os._exit(0)

    def write(self, **more: Any) -> None:
        """Write what is known so far, whole or not at all."""
        answer = {
            "schema": 1, "base": self.base, "peaks": self.peaks, "workers": self._workers, "device": self.device,
            "settled": self.settled, "held_later": self.later_pages, "crops_a_second": self.crops_a_second,
            "phase": self.phase, "finished": False, "over": None, "error": None, "held": self._most, "crowded": False,
        }  # fmt: skip
        with self._file_lock:
            self._written = self._most
            run_folder.write_json(self.out, {**answer, **more}, private=True)

    def _watch(self) -> None:
        looks = 0
        while not self._end.wait(LOOK):
            if looks % FAMILY == 0:
                self._workers = max(self._workers, _worker_memory())
            looks += 1
            with self._lock:
                self._peak = max(self._peak, usage := self.now() + self._workers)
                self._most = max(self._most, usage)
            if self.usable is not None and not self._cuda and usage > self.usable:
                self.stop(usage)
            if self._most > self._written + GROWN:
                self.write()
            if looks % LOOKS_AT_MACHINE == 0 and self.usable is not None and not self._cuda and _scarce():
                if usage > 0.9 * self.usable:
                    self.stop(usage)
                self.write(crowded=True)
                os._exit(0)

    def _reset(self) -> None:
        """Let the kernel's own high-water mark begin again here (5 to clear_refs, proc(5))."""
        self._peak = 0
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def _counted(self, *, high: bool) -> int:
        status = memory_fields(Path("/proc/self/status"))
        if self.kind == "address":
            return status.get("VmPeak" if high else "VmSize", 0)
        if self.kind == "data":
            return status.get("VmData", 0)
        return status.get("VmHWM" if high else "VmRSS", 0) - status.get("RssFile", 0)


def out_of_memory(error: BaseException | None) -> bool:
    """Return whether an exception, or the one that it came from, says that there is no more memory."""
    phrases = ("can't allocate memory", "Cannot allocate memory", "could not allocate", "Insufficient memory")
    while error is not None:
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in str(error) for words in phrases):
            return True
        error = error.__cause__ or error.__context__
    return False


def _scarce() -> bool:
    """Return whether this machine has nearly no memory left, for a process of its size."""
    machine = memory_fields(Path("/proc/meminfo"))
    return machine.get("MemAvailable", 1) < SCARCE * machine.get("MemTotal", 0)


def _worker_memory() -> int:
    """Return what the processes below this one hold that this one does not, in bytes, without the files of libraries.

    The shares of all in every page sum up to what all hold together: a forked worker shares what it has not written to,
    and batches in shared memory are mapped on both sides. One that `vfork` has made a moment ago shows all that is ours
    as its own, until it becomes another program.
    """
    now = float(Path("/proc/uptime").read_text("ascii").split()[0])
    below = process_tree.descendants(os.getpid())[1:]
    old = [process.pid for process in below if now - process.started / process_tree.TICKS >= YOUNG]
    if not old:
        return 0
    shares = sum(
        memory_fields(Path(f"/proc/{pid}/smaps_rollup")).get(name, 0) for pid in (os.getpid(), *old) for name in SHARES
    )
    own = memory_fields(Path("/proc/self/status"))
    return max(0, shares - own.get("RssAnon", 0) - own.get("RssShmem", 0))
