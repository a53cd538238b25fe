"""Leaks in loader workers: each worker tells how large what its dataset holds is, and /proc how much is its own.

A worker that copies pages only because it reads them is told apart: its own memory grows and what it shares shrinks,
while nothing that it holds gets longer (pytorch issue 13246).
"""

from __future__ import annotations

import contextlib
import inspect
import json
import multiprocessing.process
import os
import shutil
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from torch import Tensor

from ocrlab.debug.instruments.leaks import growth_lines
from ocrlab.debug.instruments.leaks.growth_slope import slope
from ocrlab.debug.instruments.leaks.leak_report import FIXES, MIB, Leak
from ocrlab.debug.instruments.leaks.referrers import CONTAINERS
from ocrlab.debug.instruments.memory import host_memory
from ocrlab.debug.instruments.memory.storage_tracker import stored_bytes

PERIOD = 0.1  # seconds between two looks of a worker at itself
ROLLUP = 1.0  # seconds between two readings of private and shared pages, which take milliseconds
LEAST = 16 * 1024  # bytes a step
SURE = 0.95
MANY = 10_000  # objects in a container whose reference counts are worth a copy
LEVELS = 3  # of attributes below the dataset


class Workers:
    """The workers of a loader, seen from the main process."""

    def __init__(self, loader: Any = None) -> None:
        self.loader = loader
        self.samples: dict[int, list[tuple[int, float]]] = {}
        self.pages: dict[int, list[tuple[int, float, float]]] = {}
        self._folder: Path | None = None
        self._before: Any = None
        self._last = 0.0
        self._ticks: list[tuple[float, int]] = []

    def begin(self) -> None:
        """Let each worker of the loader that starts from now on look at itself."""
        if self.loader is None or not getattr(self.loader, "num_workers", 0):
            return
        self._folder = Path(tempfile.mkdtemp(prefix="ocrlab-workers-"))
        self._before = self.loader.worker_init_fn
        self.loader.worker_init_fn = Start(str(self._folder), self._before)

    def end(self) -> None:
        """Give the loader back what it had."""
        if self._folder is not None:
            self.loader.worker_init_fn = self._before
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def tick(self, tick: int) -> None:
        """Note when a step began, so that what the workers write can be told by steps."""
        self._ticks.append((time.time(), tick))
        if len(self._ticks) > 8192:
            del self._ticks[:4096]

    def sample(self, tick: int) -> None:
        """Read the memory of each worker."""
        children = [p.pid for p in list(getattr(multiprocessing.process, "_children", ())) if p.pid]
        now = time.monotonic()
        for pid in children:
            some = self.samples.setdefault(pid, [])
            some.append((tick, float(host_memory.anonymous_memory(pid))))
            del some[:-512]
        if children and now - self._last > ROLLUP:
            self._last = now
            for pid in children:
                own, shared = host_memory.dirty_pages(pid)
                self.pages.setdefault(pid, []).append((tick, float(own), float(shared)))

    def judge(self, tick: int) -> list[Leak]:
        """Return the attributes of the dataset that grow in the workers, or else the copies that reading makes."""
        sizes = self._read_sizes()
        leaks = [leak for leak in (self._of(name, series, tick) for name, series in sizes.items()) if leak]
        return leaks or self._copied(tick)

    def _read_sizes(self) -> dict[str, dict[int, list[dict[str, Any]]]]:
        """Return what the workers wrote: by attribute, by worker, in order."""
        sizes: dict[str, dict[int, list[dict[str, Any]]]] = {}
        for path in sorted(self._folder.glob("*.jsonl")) if self._folder else ():
            for text in path.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError):
                    line = json.loads(text)
                    for name, (length, size, where) in line["sizes"].items():
                        entry = {"time": line["time"], "length": length, "bytes": size, "class": where}
                        sizes.setdefault(name, {}).setdefault(line["pid"], []).append(entry)
        return sizes

    def _of(self, name: str, series: dict[int, list[dict[str, Any]]], tick: int) -> Leak | None:
        """Return the leak of one attribute, over all workers, if it grows on and has no bound."""
        rate, sure, where = 0.0, 0.0, ("", "")
        for entries in series.values():
            steps = [self._tick_at(entry["time"]) for entry in entries]
            grown = slope(steps, [entry["bytes"] for entry in entries])
            later = slope(steps[len(steps) // 2 :], [entry["bytes"] for entry in entries[len(steps) // 2 :]])
            if grown.value > 0 and grown.confidence > SURE and later.value >= 0.5 * grown.value:
                rate, sure, where = rate + grown.value, max(sure, grown.confidence), entries[-1]["class"]
        if rate < LEAST:
            return None
        kind, file = where
        lines = growth_lines.growth(name.rpartition(".")[2], [file], kind) if file else []
        if lines and lines[0].bounded:
            return None
        line = lines[0] if lines else None
        return Leak(
            "worker", rate / MIB, rate / MIB, rate / MIB, sure, f"`{name}` of {kind} in {len(series)} loader workers",
            str(line) if line else "", line.text if line else "", steps=tick, fix=FIXES["worker"],
        )  # fmt: skip

    def _tick_at(self, when: float) -> float:
        before = [tick for moment, tick in self._ticks if moment <= when]
        return float(before[-1]) if before else 0.0

    def _copied(self, tick: int) -> list[Leak]:
        """Return the leak of pages that are copied because reference counts are written."""
        data = getattr(self.loader, "dataset", None)
        many = [(n, len(v)) for n, v in _attributes(data) if isinstance(v, list | dict | tuple) and len(v) >= MANY]
        rate, sure, ended = 0.0, 0.0, True
        for pages in self.pages.values():
            steps = [float(page_sample[0]) for page_sample in pages]
            own = slope(steps, [page_sample[1] for page_sample in pages])
            shared = slope(steps, [page_sample[2] for page_sample in pages])
            if own.confidence > SURE and shared.value < -0.5 * own.value < 0:
                rate, sure, ended = rate + own.value, max(sure, own.confidence), False
        if ended or not many or rate < LEAST:
            return []
        name, count = max(many, key=lambda page_sample: page_sample[1])
        lines = growth_lines.assigned(name, _files(type(data)))
        line = lines[0] if lines else None
        return [
            Leak(
                "copy-on-write", rate / MIB, rate / MIB, rate / MIB, sure,
                f"`{name}` of {type(data).__qualname__}: each worker copies {count:,} Python objects by reading them",
                str(line) if line else "", line.text if line else "", steps=tick, fix=FIXES["copy-on-write"],
            )
        ]  # fmt: skip


class Start:
    """What a worker does when it starts: what it was asked to do anyway, and a thread that looks at its dataset."""

    def __init__(self, folder: str, before: Any) -> None:
        self.folder, self.before = folder, before

    def __call__(self, number: int) -> None:
        if self.before is not None:
            self.before(number)
        with contextlib.suppress(Exception):  # a training goes on without being looked at
            from torch.utils.data import get_worker_info

            info = get_worker_info()
            if info is not None:
                threading.Thread(target=_report, args=(self.folder, info.dataset), daemon=True).start()


def _report(folder: str, dataset: Any) -> None:
    """Write what the dataset holds every now and then, until the folder is gone."""
    path, parent = Path(folder) / f"{os.getpid()}.jsonl", os.getppid()
    with contextlib.suppress(Exception):
        while os.path.isdir(folder) and os.getppid() == parent:
            line = {"pid": os.getpid(), "time": time.time(), "sizes": container_sizes(dataset)}
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            time.sleep(PERIOD)


def container_sizes(dataset: Any) -> dict[str, tuple[int, float, tuple[str, str]]]:
    """Return (length, bytes, (class, file)) of each container that a dataset holds in its attributes, by name."""
    sizes: dict[str, tuple[int, float, tuple[str, str]]] = {}
    waiting: deque[tuple[str, Any, int]] = deque([("", dataset, 0)])
    visited: set[int] = set()
    while waiting and len(sizes) < 200:
        prefix, thing, depth = waiting.popleft()
        if id(thing) in visited:
            continue
        visited.add(id(thing))
        where = (type(thing).__qualname__, next(iter(_files(type(thing))), ""))
        for name, value in _attributes(thing):
            dotted = f"{prefix}{name}"
            if isinstance(value, CONTAINERS):
                sizes[dotted] = (len(value), _size(value), where)
            elif depth < LEVELS and hasattr(value, "__dict__") and not isinstance(value, type | Tensor):
                waiting.append((f"{dotted}.", value, depth + 1))
    return sizes


def _attributes(thing: Any) -> list[tuple[str, Any]]:
    try:
        return list(vars(thing).items())
    except TypeError:
        return []


def _size(value: Any) -> float:
    """Return the bytes of a container, told by some of its items."""
    items = list(value.values()) if isinstance(value, dict) else list(value)
    some = items[:: max(1, len(items) // 32)][:32]
    return sum(_item(item) for item in some) / max(1, len(some)) * len(items)


def _item(value: Any) -> float:
    if isinstance(value, Tensor):
        return stored_bytes(value)
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return float(size)
    if type(value).__module__.startswith("PIL.") and hasattr(value, "getbands"):
        return float(value.size[0] * value.size[1] * len(value.getbands()))
    if isinstance(value, list | tuple):
        return float(sum(_item(part) for part in value[:32]))
    if isinstance(value, dict):
        return float(sum(_item(part) for part in list(value.values())[:32]))
    return float(value.__sizeof__())


def _files(kind: type) -> list[str]:
    files = []
    for base in inspect.getmro(kind):
        with contextlib.suppress(TypeError, OSError):
            files.append(inspect.getfile(base))
    return [file for file in files if growth_lines.is_own(file)] or files[:1]
