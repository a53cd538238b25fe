"""Leaks in loader workers: each worker reports from a thread how large the attributes of its data set are."""

from __future__ import annotations

import contextlib
import json
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
from ocrlab.debug.instruments.leaks.growth_slope import slope, still_grows
from ocrlab.debug.instruments.leaks.leak_report import FIXES, MIB, SURE, Leak
from ocrlab.debug.instruments.leaks.object_sizes import CONTAINERS, mean_bytes
from ocrlab.debug.instruments.leaks.referrers import class_files

PERIOD = 0.1  # seconds between two reports of a worker
LEAST = 16 * 1024  # bytes a step
LEVELS = 3  # of attributes below the data set
MOST_ATTRIBUTES = 200

Sizes = dict[str, tuple[float, tuple[str, str]]]  # of each attribute: bytes, (class, file)
Reports = dict[int, list[tuple[float, float, list[str]]]]  # by worker: step, bytes, (class, file)


class WorkerLeaks:
    """The data set in the workers of a loader, watched from the main process."""

    def __init__(self, loader: Any = None) -> None:
        self.loader = loader
        self._folder: Path | None = None
        self._own_init: Any = None
        self._steps: deque[tuple[float, int]] = deque(maxlen=8192)

    def begin(self) -> None:
        """Let each worker of the loader that starts from now on report its sizes."""
        if getattr(self.loader, "num_workers", 0):
            self._folder = Path(tempfile.mkdtemp(prefix="ocrlab-workers-"))
            self._own_init = self.loader.worker_init_fn
            self.loader.worker_init_fn = ReportingInit(str(self._folder), self._own_init)

    def end(self) -> None:
        """Restore the loader."""
        if self._folder is not None:
            self.loader.worker_init_fn = self._own_init
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def tick(self, step: int) -> None:
        """Note when a step began, so that reports of the workers can be assigned to steps."""
        self._steps.append((time.time(), step))

    def judge(self, step: int) -> list[Leak]:
        """Return the attributes of the data set that grow in the workers."""
        attributes: defaultdict[str, Reports] = defaultdict(dict)
        for path in sorted(self._folder.glob("*.jsonl")) if self._folder else ():
            for text in path.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError):  # the last line may be half written
                    report = json.loads(text)
                    began = next((step for at, step in reversed(self._steps) if at <= report["time"]), 0)
                    for name, (size, owner) in report["sizes"].items():
                        attributes[name].setdefault(report["pid"], []).append((float(began), size, owner))
        leaks = (self._attribute_leak(name, reports, step) for name, reports in attributes.items())
        return [leak for leak in leaks if leak]

    def _attribute_leak(self, name: str, reports: Reports, step: int) -> Leak | None:
        """Return the leak of one attribute, over all workers, if it keeps growing and has no bound."""
        rate, confidence, owner, file = 0.0, 0.0, "", ""
        for entries in reports.values():
            steps, sizes = [entry[0] for entry in entries], [entry[1] for entry in entries]
            grown = slope(steps, sizes)
            if grown.confidence > SURE and still_grows(steps, sizes):
                rate, confidence, (owner, file) = rate + grown.value, max(confidence, grown.confidence), entries[-1][2]
        lines = growth_lines.growth(name.rpartition(".")[2], [file], owner) if file else []
        if rate < LEAST or (lines and lines[0].bounded):
            return None
        rate /= MIB
        location, code = (str(lines[0]), lines[0].text) if lines else ("", "")
        holder = f"`{name}` of {owner} in {len(reports)} loader workers"
        fix = FIXES["worker"]
        return Leak("worker", rate, rate, rate, confidence, holder, location, code, steps=step, fix=fix)


class ReportingInit:
    """The `worker_init_fn` of a watched loader: the program's own, then a thread that reports sizes."""

    def __init__(self, folder: str, function: Any) -> None:
        self.folder, self.function = folder, function

    def __call__(self, number: int) -> None:
        if self.function is not None:
            self.function(number)
        with contextlib.suppress(Exception):  # a training goes on without being watched
            info = get_worker_info()
            if info is not None:
                threading.Thread(target=_report_sizes, args=(self.folder, info.dataset), daemon=True).start()


def _report_sizes(folder: str, dataset: Any) -> None:
    """Write the sizes of a data set's attributes now and then, until the folder is gone."""
    path, parent = Path(folder) / f"{os.getpid()}.jsonl", os.getppid()
    with contextlib.suppress(Exception):
        while os.path.isdir(folder) and os.getppid() == parent:
            report = {"pid": os.getpid(), "time": time.time(), "sizes": container_sizes(dataset)}
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(report) + "\n")
            time.sleep(PERIOD)


def container_sizes(dataset: Any) -> Sizes:
    """Return (bytes, (class, file)) of each container that a data set holds in its attributes, by name."""
    sizes: Sizes = {}
    waiting: deque[tuple[str, Any, int]] = deque([("", dataset, 0)])
    visited: set[int] = set()
    while waiting and len(sizes) < MOST_ATTRIBUTES:
        prefix, owner, depth = waiting.popleft()
        if id(owner) in visited:
            continue
        visited.add(id(owner))
        place = (type(owner).__qualname__, next(iter(class_files(type(owner))), ""))
        for name, value in list(getattr(owner, "__dict__", {}).items()):
            if isinstance(value, CONTAINERS):
                items = list(value.values() if isinstance(value, dict) else value)
                some = items[:: max(1, len(items) // 32)][:32]
                sizes[prefix + name] = mean_bytes(some, 2) * len(items), place
            elif depth < LEVELS and hasattr(value, "__dict__") and not isinstance(value, type | Tensor):
                waiting.append((f"{prefix}{name}.", value, depth + 1))
    return sizes
