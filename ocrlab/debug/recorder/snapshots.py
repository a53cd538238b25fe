"""Snapshots of a training while it runs: copied to the host in its own thread, written by another one, in two files.

What lies on a device travels while the training goes on: later work of the same stream comes after the copy. The
writer begins at the first step that finds it arrived; it makes no CUDA call, which could spoil a graph being captured.

A snapshot is whole or not there: the older of the two files is replaced, under a temporary name first. What was
replaced is kept to be written over by the next one: a new file asks the kernel for all of its pages, which takes longer
than to fill them. How often a snapshot is taken follows from what the last ones cost.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ocrlab.debug.flight_record.ring_reader import SEAL, is_whole
from ocrlab.debug.instruments.tensor_tree import tensors
from ocrlab.errors import CheckpointError
from ocrlab.hardware import system_files
from ocrlab.records import SCHEMA

SHARE = 0.003  # of the time that a run takes: with what it costs the steps beside it 1 %
SMALL = 256 << 20  # bytes that the first snapshot waits for, so that it is there before the first step
ASK_EVERY = 8  # micro-batches between two looks at the clock
MEMORY = 0.25  # of the host's free memory that the copy may take
# What torch.save's older form holds for `weights_only`; the others (float8, unsigned integers) go into its zip files.
OLDER: tuple[torch.dtype, ...] = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128)
OLDER += (torch.complex64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


class Snapshots:
    """The snapshots of one process; `every` micro-batches, or None: as often as one percent of the time allows."""

    def __init__(self, folder: Path, rank: int, start: int, *, every: int | None = None, most: int = 240) -> None:
        self.folder, self.rank, self.start, self.every, self.most = folder, rank, start, every, most
        self.buffers: dict[str, Tensor] = {}
        self.devices: set[torch.device] = set()  # from which copies are under way
        self.pending: tuple[dict[str, Any], float, list[Any]] | None = None  # state, cost, what it waits for
        self.thread: threading.Thread | None = None
        self.problem: Exception | None = None
        self.written: Callable[[int, int, int], None] | None = None  # side, micro, number
        self.begun = time.monotonic()
        self.spent = self.dearest = 0.0  # seconds of all snapshots, of the dearest one
        self.cuda: Callable[[], bool] = lambda: True  # whether CUDA may be called
        self.side = 0
        self.last = -1  # micro-batch of the last one taken
        self.quiet = -1  # micro-batch up to which none is due
        self.complete: list[int] = []  # micro-batches of the complete ones, the older first
        for left in folder.glob(f".snapshot-{rank}.*.*"):  # by a process that was killed
            left.unlink(missing_ok=True)
        self.spare = folder / f".snapshot-{rank}.{os.getpid()}.spare"

    def due(self, micro: int) -> bool:
        """Return whether a snapshot is due; raises the error of the one before."""
        if self.pending is not None:
            self._continue()
        if self.pending is not None or (self.thread is not None and self.thread.is_alive()):
            return False
        if self.problem is not None:
            problem, self.problem = self.problem, None
            raise problem
        if self.last < 0:
            return True
        since = micro - self.last
        if self.every is not None:
            self.quiet = self.last + self.every - 1
            return since >= self.every
        if since >= self.most:  # the ring forgets what came after the last one
            return True
        if self.spent + self.dearest <= SHARE * (time.monotonic() - self.begun):
            return True
        self.quiet = min(micro + ASK_EVERY, self.last + self.most) - 1
        return False

    def take(self, content: dict[str, Any], *, micro: int, number: int) -> None:
        """Copy a state to the host and start writing it; raises CheckpointError where there is no room for it."""
        began = time.perf_counter()
        first = self.last < 0
        left_out: list[str] = []
        if first:
            self.check_space(sum(t.numel() * t.element_size() for _, t in tensors(content)))
        snapshot: dict[str, Any] = {"schema": SCHEMA, "start": self.start, "micro": micro, "number": number}
        snapshot["state"] = self._copied(content, "state", left_out)
        snapshot["left_out"] = left_out
        self.last, self.quiet = micro, -1
        self.pending = snapshot, time.perf_counter() - began, self._copy_events()
        if first and sum(t.nbytes for t in self.buffers.values()) <= SMALL:
            self.close()
        else:
            self._continue()

    def close(self) -> None:
        """Wait for the pending snapshot; raises the errors of the device."""
        if self.pending is not None:
            for event in self.pending[2]:
                event.synchronize()
            self._continue()
        if self.thread is not None:
            self.thread.join()
        self.spare.unlink(missing_ok=True)

    def abandon(self) -> list[Any]:
        """Abandon the pending snapshot, and return what must not be freed in a dead CUDA context."""
        pending, self.pending = self.pending, None
        return [*(pending[2] if pending else ()), *self.buffers.values()]

    def _copy_events(self) -> list[Any]:
        """Return an event after the copies from each device."""
        events = []
        for device in self.devices:
            with torch.cuda.device(device):
                events.append(torch.cuda.Event())
                events[-1].record()
        return events

    def _continue(self) -> None:
        """Start writing a snapshot whose copies have arrived; never waits."""
        if self.pending is None or not all(event.query() for event in self.pending[2]):
            return
        snapshot, copying, _ = self.pending
        self.pending = None
        self.thread = threading.Thread(
            target=self._write, args=(snapshot, copying), name="ocrlab snapshot", daemon=True
        )
        self.thread.start()

    def check_space(self, size: int) -> None:
        """Raise CheckpointError where snapshots of so many bytes have no space on the disk, or in memory."""
        free = shutil.disk_usage(self.folder).free
        if 3 * size > 0.9 * free:
            raise CheckpointError(
                "There is no space for two snapshots of this training and a third one being written",
                got=f"{free >> 20} MiB free", need=f"{(3 * size) >> 20} MiB", do="Free some, or set recorder.on=false",
            )  # fmt: skip
        memory = system_files.memory_fields(Path("/proc/meminfo")).get("MemAvailable")
        if memory is not None and size > MEMORY * memory:
            raise CheckpointError(
                "There is not enough memory for a snapshot of this training", got=f"{memory >> 20} MiB free",
                need=f"{int(size / MEMORY) >> 20} MiB",
            )  # fmt: skip

    def _copied(self, value: Any, path: str, left_out: list[str]) -> Any:
        """Return a copy on the host that `weights_only` reads; what it would not read is left out and named."""
        if isinstance(value, Tensor):
            return self._tensor(value, path, left_out)
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return value if type(value) in (type(None), bool, int, float, str, bytes) else _base(value)
        if isinstance(value, Mapping):
            pairs = [(k, v) for k, v in value.items() if isinstance(k, str | int | float | bool)]
            if len(pairs) < len(value):
                left_out.append(f"{path}: {len(value) - len(pairs)} keys")
            return {_base(k): self._copied(v, f"{path}.{k}", left_out) for k, v in pairs}
        if isinstance(value, list | tuple | set | frozenset):
            parts = [self._copied(part, f"{path}.{i}", left_out) for i, part in enumerate(value)]
            return tuple(parts) if isinstance(value, tuple) else parts
        if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a NumPy number
            return value.item()
        left_out.append(f"{path}: {type(value).__name__}")
        return None

    def _tensor(self, value: Tensor, path: str, left_out: list[str]) -> Tensor | None:
        value = value.detach()
        if value.is_cuda and not self.cuda():
            raise CheckpointError("The CUDA context is dead: no snapshot of the device is possible")
        if value.layout is not torch.strided or value.device.type == "meta" or type(value).__name__ == "DTensor":
            left_out.append(f"{path}: a tensor of layout {value.layout} on {value.device.type}")
            return None
        buffer = self.buffers.get(path)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            buffer = self.buffers[path] = _room_for(value)
        if value.is_cuda:
            self.devices.add(value.device)
        buffer.copy_(value, non_blocking=value.is_cuda)
        return buffer

    def _write(self, snapshot: dict[str, Any], copying: float) -> None:
        began = time.thread_time()
        try:
            with contextlib.suppress(OSError, AttributeError):  # a thread has a priority of its own on Linux
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
            path = self.folder / f"snapshot-{self.rank}-{'ab'[self.side]}.pt"
            write(snapshot, path, self.spare, older=all(t.dtype in OLDER for t in self.buffers.values()))
            self.complete = [*self.complete[-1:], snapshot["micro"]]
            if self.written is not None:
                self.written(self.side, snapshot["micro"], snapshot["number"])
            self.side = 1 - self.side
        except Exception as error:
            self.problem = error
        cost = copying + time.thread_time() - began
        self.spent += cost
        self.dearest = max(cost, 0.5 * self.dearest)


def write(content: dict[str, Any], path: Path, spare: Path, *, older: bool = True) -> None:
    """Write a snapshot whole or not at all, mode 0600, over the file `spare`, which then is what was there before;
    `older` chooses the form of torch.save. Raises OSError.
    """
    replaced = spare.with_suffix(".old")
    try:
        with open(os.open(spare, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as file:
            plain: Any = _Plain(file)
            torch.save(content, plain, _use_new_zipfile_serialization=not older)
            if older:
                file.write(SEAL)
            file.truncate()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            path.replace(replaced)
        spare.replace(path)
        with contextlib.suppress(FileNotFoundError):
            replaced.replace(spare)
    except BaseException as error:
        spare.unlink(missing_ok=True)
        if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
            raise error.__context__ from error  # the zip writer's message does not name the full disk
        raise


class _Plain:
    """A file without a descriptor: to one that has it torch writes with the interpreter locked, and a slow disk would
    hold the training up.

    torch.save's older form goes through this in one piece a tensor. Its zip files take half as long again, for copies
    and for checksums that torch.load does not look at; both forms are refused where their end is missing.
    """

    def __init__(self, file: Any) -> None:
        self.write, self.flush = file.write, file.flush


def read(path: Path) -> dict[str, Any]:
    """Read a snapshot without pickle; raises CheckpointError."""
    if not is_whole(path):
        raise CheckpointError(f"{path} cannot be read as a snapshot", got="an incomplete or missing file")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        if content["schema"] > SCHEMA:
            raise CheckpointError(f"{path} was written by a newer ocrlab", need=f"schema {SCHEMA} or older")
        return dict(content)
    except CheckpointError:
        raise
    except Exception as error:  # zip, unpickling, truncation and a wrong content share no base class
        raise CheckpointError(
            f"{path} cannot be read as a snapshot", got=f"{type(error).__name__}: {error}".splitlines()[0]
        ) from error


def _room_for(value: Tensor) -> Tensor:
    """Return memory on the host for a tensor, for one of CUDA pinned, unless the system has no more of that (WSL)."""
    if value.is_cuda:
        with contextlib.suppress(RuntimeError):
            return torch.empty_like(value, device="cpu", pin_memory=True)
    return torch.empty_like(value, device="cpu")


def _base(value: Any) -> Any:
    """Return a number or text of a subclass (an enumeration, numpy.float64) as Python's own."""
    kinds: tuple[Any, ...] = (bool, int, float, str, bytes)
    return next((kind(value) for kind in kinds if isinstance(value, kind)), value)
