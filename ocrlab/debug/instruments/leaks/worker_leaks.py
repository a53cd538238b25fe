"""Leaks in loader workers: each worker reports how large its dataset's attributes are, and /proc how much is its own.

A worker that copies pages only because it reads them is a case of its own: its private memory grows and what it shares
shrinks, while nothing that it holds gets longer (pytorch issue 13246).
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing.process
import os
import shutil
import tempfile
import threading
import time
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import get_worker_info

from ocrlab.debug.instruments.leaks import growth_lines
from ocrlab.debug.instruments.leaks.growth_lines import Line, class_files
from ocrlab.debug.instruments.leaks.growth_slope import slope, still_grows
from ocrlab.debug.instruments.leaks.leak_report import FIXES, MIB, Leak
from ocrlab.debug.instruments.leaks.object_sizes import CONTAINERS, mean_bytes
from ocrlab.debug.instruments.memory import host_memory

PERIOD = 0.1  # seconds between two reports of a worker
ROLLUP = 1.0  # seconds between two readings of private and shared pages, which take milliseconds
LEAST = 16 * 1024  # bytes a step
SURE = 0.95
MANY = 10_000  # objects in a container whose reference counts are worth a copy
LEVELS = 3  # of attributes below the dataset
MOST_ATTRIBUTES = 200

Sizes = dict[str, tuple[int, float, tuple[str, str]]]  # of each attribute: length, bytes, (class, file)


class Workers:
    """The workers of a loader, watched from the main process."""

    def __init__(self, loader: Any = None) -> None:
        self.loader = loader
        self.pages: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)  # by worker: step, own, shared
        self._folder: Path | None = None
        self._before: Any = None
        self._read_at = 0.0
        self._steps: deque[tuple[float, int]] = deque(maxlen=8192)

    def begin(self) -> None:
        """Let each worker of the loader that starts from now on report its sizes."""
        if getattr(self.loader, "num_workers", 0):
            self._folder = Path(tempfile.mkdtemp(prefix="ocrlab-workers-"))
            self._before = self.loader.worker_init_fn
            self.loader.worker_init_fn = WorkerStart(str(self._folder), self._before)

    def end(self) -> None:
        """Restore the loader."""
        if self._folder is not None:
            self.loader.worker_init_fn = self._before
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def tick(self, step: int) -> None:
        """Note when a step began, so that reports of the workers can be assigned to steps."""
        self._steps.append((time.time(), step))

    def sample(self, step: int) -> None:
        """Read private and shared pages of each worker, once a second."""
        if self._folder is None or time.monotonic() - self._read_at < ROLLUP:
            return
        self._read_at = time.monotonic()
        for child in list(getattr(multiprocessing.process, "_children", ())):
            if child.pid:
                self.pages[child.pid].append((step, *host_memory.dirty_pages(child.pid)))

    def judge(self, step: int) -> list[Leak]:
        """Return the attributes of the dataset that grow in the workers, or else the copies that reading makes."""
        leaks = [self._attribute_leak(name, series, step) for name, series in self._read_reports().items()]
        return [leak for leak in leaks if leak] or self._page_copies(step)

    def _read_reports(self) -> dict[str, dict[int, list[tuple[float, float, list[str]]]]]:
        """Return (step, bytes, (class, file)) as the workers wrote it, by attribute and worker."""
        reports: dict[str, dict[int, list[tuple[float, float, list[str]]]]] = {}
        for path in sorted(self._folder.glob("*.jsonl")) if self._folder else ():
            for text in path.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError):  # the last line may be half written
                    report = json.loads(text)
                    for name, (_, size, owner) in report["sizes"].items():
                        entries = reports.setdefault(name, {}).setdefault(report["pid"], [])
                        entries.append((self._step_at(report["time"]), size, owner))
        return reports

    def _step_at(self, when: float) -> float:
        return float(next((step for moment, step in reversed(self._steps) if moment <= when), 0))

    def _attribute_leak(
        self, name: str, series: dict[int, list[tuple[float, float, list[str]]]], step: int
    ) -> Leak | None:
        """Return the leak of one attribute, over all workers, if it keeps growing and has no bound."""
        rate, confidence, owner, file = 0.0, 0.0, "", ""
        for entries in series.values():
            steps, sizes = [entry[0] for entry in entries], [entry[1] for entry in entries]
            grown = slope(steps, sizes)
            if grown.confidence > SURE and still_grows(steps, sizes):
                rate, confidence, (owner, file) = rate + grown.value, max(confidence, grown.confidence), entries[-1][2]
        lines = growth_lines.growth(name.rpartition(".")[2], [file], owner) if file else []
        if rate < LEAST or (lines and lines[0].bounded):
            return None
        holder = f"`{name}` of {owner} in {len(series)} loader workers"
        return _leak("worker", rate, confidence, holder, lines, step)

    def _page_copies(self, step: int) -> list[Leak]:
        """Return the leak of pages that are copied because reference counts are written."""
        data = getattr(self.loader, "dataset", None)
        sized = [(name, len(value)) for name, value in _attributes(data) if isinstance(value, list | dict | tuple)]
        name, count = max(sized, key=lambda item: item[1], default=("", 0))
        rate = confidence = 0.0
        for pages in self.pages.values():
            own, shared = (slope([page[0] for page in pages], [page[column] for page in pages]) for column in (1, 2))
            if own.confidence > SURE and shared.value < -0.5 * own.value < 0:
                rate, confidence = rate + own.value, max(confidence, own.confidence)
        if count < MANY or rate < LEAST:
            return []
        lines = growth_lines.assigned(name, class_files(type(data)))
        holder = f"`{name}` of {type(data).__qualname__}: each worker copies {count:,} Python objects by reading them"
        return [_leak("copy-on-write", rate, confidence, holder, lines, step)]


def _leak(kind: str, rate: float, confidence: float, holder: str, lines: list[Line], step: int) -> Leak:
    location, code = (str(lines[0]), lines[0].text) if lines else ("", "")
    rate /= MIB
    return Leak(kind, rate, rate, rate, confidence, holder, location, code, steps=step, fix=FIXES[kind])


class WorkerStart:
    """The `worker_init_fn` of a watched loader: the program's own, then a thread that reports sizes."""

    def __init__(self, folder: str, before: Any) -> None:
        self.folder, self.before = folder, before

    def __call__(self, number: int) -> None:
        if self.before is not None:
            self.before(number)
        with contextlib.suppress(Exception):  # a training goes on without being watched
            info = get_worker_info()
            if info is not None:
                threading.Thread(target=_report_sizes, args=(self.folder, info.dataset), daemon=True).start()


def _report_sizes(folder: str, dataset: Any) -> None:
    """Write the sizes of a dataset's attributes every now and then, until the folder is gone."""
    path, parent = Path(folder) / f"{os.getpid()}.jsonl", os.getppid()
    with contextlib.suppress(Exception):
        while os.path.isdir(folder) and os.getppid() == parent:
            report = {"pid": os.getpid(), "time": time.time(), "sizes": container_sizes(dataset)}
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(report) + "\n")
            time.sleep(PERIOD)


def container_sizes(dataset: Any) -> Sizes:
    """Return (length, bytes, (class, file)) of each container that a dataset holds in its attributes, by name."""
    sizes: Sizes = {}
    waiting: deque[tuple[str, Any, int]] = deque([("", dataset, 0)])
    visited: set[int] = set()
    while waiting and len(sizes) < MOST_ATTRIBUTES:
        prefix, owner, depth = waiting.popleft()
        if id(owner) in visited:
            continue
        visited.add(id(owner))
        place = (type(owner).__qualname__, next(iter(class_files(type(owner))), ""))
        for name, value in _attributes(owner):
            if isinstance(value, CONTAINERS):
                items = list(value.values() if isinstance(value, dict) else value)
                some = items[:: max(1, len(items) // 32)][:32]
                sizes[prefix + name] = (len(items), mean_bytes(some, 2) * len(items), place)
            elif depth < LEVELS and hasattr(value, "__dict__") and not isinstance(value, type | Tensor):
                waiting.append((f"{prefix}{name}.", value, depth + 1))
    return sizes


def _attributes(owner: Any) -> list[tuple[str, Any]]:
    return list(getattr(owner, "__dict__", {}).items())
