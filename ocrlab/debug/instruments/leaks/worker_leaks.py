"""Leaks in loader workers: each worker reports from a thread how large the attributes of its data set are."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import threading
import time
from bisect import bisect_right
from collections import defaultdict, deque
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import get_worker_info

from ocrlab.debug.instruments.leaks import growth_lines
from ocrlab.debug.instruments.leaks.growth_slope import Slope, slope, still_grows
from ocrlab.debug.instruments.leaks.leak_report import FIXES, MIB, SURE, Leak
from ocrlab.debug.instruments.leaks.referrers import CONTAINERS, class_files, mean_bytes

PERIOD = 0.1  # seconds between two reports of a worker
LEAST = 16 * 1024  # bytes a step
LEVELS = 3  # of attributes below the data set
MOST_ATTRIBUTES = 200
MOST_STEPS = 100_000  # whose beginnings are stored

Sizes = dict[str, tuple[float, str, str]]  # of each attribute: bytes, class, file


class WorkerLeaks:
    """The data set in the workers of a loader, watched from the main process."""

    def __init__(self, loader: Any = None) -> None:
        self.loader: Any = loader if getattr(loader, "num_workers", 0) else None
        self._folder = ""
        self._own_init: Any = None
        self._began: list[float] = []  # when each step began

    def begin(self) -> None:
        """Let each worker of the loader that starts from now on report its sizes."""
        if self.loader is not None:
            self._folder = tempfile.mkdtemp(prefix="ocrlab-workers-")
            self._own_init = self.loader.worker_init_fn
            self.loader.worker_init_fn = partial(_begin_reports, self._folder, self._own_init)

    def end(self) -> None:
        """Restore the loader."""
        if self._folder:
            self.loader.worker_init_fn = self._own_init
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""

    def tick(self) -> None:
        """Note when a step began, so that reports of the workers can be assigned to steps."""
        if self._folder and len(self._began) < MOST_STEPS:
            self._began.append(time.time())

    def judge(self) -> list[Leak]:
        """Return the attributes of the data set that grow in the workers, keep growing and have no bound."""
        growths: defaultdict[tuple[str, str, str], list[Slope]] = defaultdict(list)  # by attribute, of each worker
        paths = sorted(Path(self._folder).glob("*.jsonl")) if self._folder else []
        for path in paths:
            points: defaultdict[tuple[str, str, str], list[tuple[int, float]]] = defaultdict(list)
            for text in path.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError):  # the last line may be half written
                    moment, sizes = json.loads(text)
                    for name, (size, *place) in sizes.items():
                        points[(name, *place)].append((bisect_right(self._began, moment), size))
            for attribute, some in points.items():
                at, values = zip(*some, strict=True)
                if (grown := slope(at, values)).confidence > SURE and still_grows(at, values):
                    growths[attribute].append(grown)
        leaks = []
        for (name, owner, file), grown_by in growths.items():
            rate = sum(grown.value for grown in grown_by) / MIB
            line = next(iter(growth_lines.growth(name.rpartition(".")[2], [file], owner)), growth_lines.Line("", 0))
            if rate * MIB >= LEAST and not line.bounded:
                sure, steps = max(grown.confidence for grown in grown_by), len(self._began)
                holder, place = f"`{name}` of {owner} in {len(paths)} loader workers", str(line) if line.file else ""
                figures = (rate, rate, rate, sure)
                leaks.append(Leak("worker", *figures, holder, place, line.text, steps=steps, fix=FIXES["worker"]))
        return leaks


def _begin_reports(folder: str, own_init: Any, worker: int) -> None:
    """Begin a worker of a watched loader: the program's own `worker_init_fn`, then a thread that reports sizes."""
    if own_init is not None:
        own_init(worker)
    with contextlib.suppress(Exception):  # a training goes on without being watched
        dataset = get_worker_info().dataset  # type: ignore[union-attr]
        threading.Thread(target=_report_sizes, args=(folder, dataset), daemon=True).start()


def _report_sizes(folder: str, dataset: Any) -> None:
    """Write the sizes of a data set's attributes now and then, until the folder is gone."""
    path, parent = Path(folder) / f"{os.getpid()}.jsonl", os.getppid()
    with contextlib.suppress(Exception):
        while os.path.isdir(folder) and os.getppid() == parent:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([time.time(), container_sizes(dataset)]) + "\n")
            time.sleep(PERIOD)


def container_sizes(dataset: Any) -> Sizes:
    """Return (bytes, class, file) of each container that a data set holds in its attributes, by name."""
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
                sizes[prefix + name] = (mean_bytes(some, 2) * len(items), *place)
            elif depth < LEVELS and hasattr(value, "__dict__") and not isinstance(value, type | Tensor):
                waiting.append((f"{prefix}{name}.", value, depth + 1))
    return sizes
