"""The memory of a training, or of the whole machine, sample by sample: GPUs, processes, shared memory, control group.

Each limit comes with how fast one moves towards it and when it is reached. A sample never waits for the driver.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ocrlab import run_folder
from ocrlab.debug.memory.memory_series import growth
from ocrlab.hardware import cgroup, process_memory
from ocrlab.hardware.gpu_monitor import Stream
from ocrlab.hardware.processes import process_tree
from ocrlab.records import SCHEMA, Reading
from ocrlab.run_folder import status_file
from ocrlab.run_folder.owner_process import alive

POINTS = 240  # kept of each curve; of more, every second one is dropped
SLOPE_SECONDS = 300.0  # of which the slope is taken: what grew an hour ago may have ended
LARGEST = 8  # processes named


class Monitor:
    """Samples of one process tree (`pid`), or of the whole machine (None); `close` it."""

    def __init__(
        self,
        pid: int | None = None,
        seconds: float = 1.0,
        *,
        stream: Any = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pid, self.clock = pid, clock
        self.stream = stream or Stream(seconds)
        self.curves: dict[str, deque[tuple[float, float]]] = {}
        self.began = clock()
        self.started = self._started()

    def sample(self) -> dict[str, Any]:
        """Return everything as it is now; what cannot be read is left out or carries its reason."""
        now = self.clock() - self.began
        sample: dict[str, Any] = {"schema": SCHEMA, "time": run_folder.now(), "seconds": round(now, 1), "pid": self.pid}
        sample["alive"] = self.pid is None or self._started() == self.started is not None
        host = sample["host"] = _host(self.pid)
        pids = {use["pid"] for use in host["processes"]} if self.pid is not None else set()
        shm = process_memory.shared_memory().value
        group = cgroup.memory_use("self" if self.pid is None else self.pid)
        sample |= {"shm": shm, "group": group.value, "gpus": _gpus(self.stream.latest(), pids)}
        for name, (value, limit) in limits(sample).items():
            curve = self.curves.setdefault(name, deque())
            curve.append((now, value))
            if len(curve) > POINTS:
                points = [*list(curve)[len(curve) % 2 : -1 : 2], curve[-1]]
                curve.clear()
                curve.extend(points)
            recent = [point for point in curve if point[0] >= now - SLOPE_SECONDS]
            sample.setdefault("growth", {})[name] = asdict(
                growth([at for at, _ in recent], [used for _, used in recent], limit)
            )
        return sample

    def close(self) -> None:
        """Let go of the driver."""
        self.stream.close()

    def _started(self) -> int | None:
        process = process_tree.read_process(self.pid) if self.pid is not None else None
        return None if process is None or process.state in "ZX" else process.started


def limits(sample: dict[str, Any]) -> dict[str, tuple[float, float | None]]:
    """Return by name what is used and what there is, in bytes: host, group, shm, gpu 0 ..."""
    host, used_and_limit = sample["host"], {}
    used = host.get("pss") or host["rss"]
    used_and_limit["host"] = (used, used + host["available"] if host.get("available") is not None else None)
    if sample["group"]:
        group = sample["group"]
        used_and_limit["group"] = (group["used"] - group["reclaimable"], group["limit"])
    if sample["shm"]:
        used_and_limit["shm"] = (sample["shm"]["used"], sample["shm"]["total"])
    for card in sample["gpus"].get("cards", ()):
        if card.get("used") is not None:
            used_and_limit[f"gpu {card['index']}"] = (card["used"], card.get("total"))
    return used_and_limit


def newest(runs: Path | str) -> tuple[int, Path] | None:
    """Return pid and folder of the newest run that still lives on this machine, None where none does."""
    for path in sorted(Path(runs).glob("*/.RUNNING"), key=lambda file: -file.stat().st_mtime):
        process = status_file.running_process(path.parent)
        pid = process.get("pid")
        if isinstance(pid, int) and process_tree.read_process(pid) is not None and alive(process):
            return pid, path.parent
    return None


def _host(pid: int | None) -> dict[str, Any]:
    """Return the memory of a process tree and what the machine could still give it, else of the whole machine."""
    memory = process_memory.machine_memory().value or {}
    if pid is not None:
        return {**process_memory.process(pid), "available": memory.get("available")}
    return {"processes": process_memory.largest_processes(LARGEST), "pss": None, "rss": memory.get("used", 0), **memory}


def _gpus(reading: Reading, pids: set[int]) -> dict[str, Any]:
    """Return the cards with their number, and which of their processes are of the tree."""
    if reading.value is None:
        return {"missing": reading.missing}
    cards = []
    for index, card in enumerate(reading.value["cards"]):
        processes = [{**process, "ours": process["pid"] in pids} for process in card.get("processes", ())]
        cards.append({"index": index, **card, "processes": processes})
    gpus = {"cards": cards, "driver": reading.value.get("driver"), "age": round(reading.value["age"], 1)}
    return {**gpus, "missing": reading.missing} if reading.missing else gpus
