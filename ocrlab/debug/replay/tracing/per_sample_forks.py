"""Each sample of a batch by itself: the replaying process forks once for each, just before the step, and waits.

What a sample does to its fork (a crash, an endless operator) harms nobody else, and no program is started again for it.
One thread in each fork: a pool of threads does not survive fork(2). A fork ends with its micro-batch, by `leave`: what
runs at the exit of a program would end the loader's workers, which are its parent's. Shapes: B samples.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from ocrlab import run_folder
from ocrlab.debug.flight_record import replay_position
from ocrlab.run_folder import fail_safe

ALL = 45.0  # seconds after which no other part is tried
REFUSED = "a process that has initialised CUDA cannot be forked"
MOST = 16  # samples that are tried one by one; of more the batch is halved first


@dataclass(frozen=True)
class BatchMaker:
    """How a part of a batch is made: `make` of the positions of its `count` samples, which have `names`."""

    names: list[str]
    count: int
    make: Callable[[Sequence[int]], Any]
    partial: bool = False  # something of the batch belongs to none of its samples, and stays whole


def each(seconds: float, out: Path, way: BatchMaker, like: Mapping[str, Any]) -> list[int]:
    """Fork for each part of a batch and return the part in the forks. The process itself ends with status 0 when all
    forks have ended, `out/alone.json` written: {"tried": [{"samples", "names", "signal", "exit_code", "hung", "fault",
    "place", "same", "well"}]}; `same` tells whether it is the fault `like`, `well` that there was no fault at all.
    Where CUDA has been initialised it ends with status 1.
    """
    if torch.cuda.is_initialized():
        print(f"ocrlab replay: samples alone: {REFUSED}", file=sys.stderr, flush=True)
        leave(1)
    tried: list[dict[str, Any]] = []
    try:
        end = time.monotonic() + ALL
        for part in _parts(way.count, tried):
            if time.monotonic() > end:
                break
            pid = os.fork()
            if pid == 0:
                torch.set_num_threads(1)
                atexit.register(leave, 1)
                return part
            result = _wait(pid, seconds) | _read_results(place(out, part))
            result |= {"samples": part, "names": [way.names[p] for p in part if p < len(way.names)]}
            result["same"] = same(result, like)
            # A part with another fault was not a batch (offsets without their values): it proves nothing.
            faults = (result["same"], result["fault"], result["signal"], result["hung"], result["exit_code"])
            tried.append({**result, "well": not any(faults)})
        record = {"schema": 1, "count": way.count, "tried": tried, "partial": way.partial}
        run_folder.write_json(out / "alone.json", record, private=True)
    except Exception as error:  # this process has not made the step, and must not go on with it
        fail_safe.report(error, "samples alone", name="ocrlab replay")
        leave(1)
    leave(0)


def leave(status: int) -> NoReturn:
    """End a fork, or the process that has made them, without what else would run at its exit."""
    os._exit(status)


def place(out: Path, part: list[int]) -> Path:
    """Return the folder of one part."""
    return out / ("alone-" + "-".join(map(str, part[:8])) + (f"-and-{len(part) - 8}" if len(part) > 8 else ""))


def same(result: Mapping[str, Any], like: Mapping[str, Any]) -> bool:
    """Return whether what became of a part is the fault that the batch has: its kind, its module, its exception."""
    kind, fault = like.get("kind"), result.get("fault") or {}
    place = result.get("place") or {}
    if kind == "hang":
        inside = str(place.get("path") or "").startswith(f"{like.get('path')}.")  # a loop calls other modules
        return bool(result["hung"]) and _near({**place, "path": like.get("path")} if inside else place, like)
    if kind == "crash":
        ended = result["signal"] or (result["exit_code"] and not fault)  # killed, or it has ended itself
        return bool(ended) and _near(place, like)
    if not fault:
        return not like and bool(result["hung"] or result["signal"] or result["exit_code"])
    if like.get("exception") and fault.get("exception"):
        own, wanted = (str(each["exception"]).partition(":")[0] for each in (fault, like))
        return own == wanted and _near(fault, like)
    return not like or fault.get("kind") == kind


def _near(fault: Mapping[str, Any], like: Mapping[str, Any]) -> bool:
    return all(not fault.get(name) or not like.get(name) or fault[name] == like[name] for name in ("phase", "path"))


def _parts(count: int, tried: list[dict[str, Any]]) -> Iterator[list[int]]:
    """Yield what to try next, by what was tried: singles, or halves of many; then all without what does it alone.

    Where no sample does it alone, each is left out once: it may need company, or a batch of one is not a batch.
    """
    todo = [[position] for position in range(count)] if count <= MOST else _halves(range(count))
    while todo:
        part = todo.pop(0)
        yield part
        if tried[-1]["same"] and len(part) > 1:
            todo = _halves(part) + todo
    bad = {result["samples"][0] for result in tried if len(result["samples"]) == 1 and result["same"]}
    if bad and len(bad) < count:
        rest = [position for position in range(count) if position not in bad]
        if len(rest) > 1:
            yield rest
    elif not bad and 2 < count <= MOST:
        for left_out in range(count):
            yield [position for position in range(count) if position != left_out]


def _halves(part: Any) -> list[list[int]]:
    middle = (len(part) + 1) // 2
    return [half for half in (list(part[:middle]), list(part[middle:])) if half]


def _wait(pid: int, seconds: float) -> dict[str, Any]:
    """Wait for a fork; end it when its time is over."""
    end, hung = time.monotonic() + seconds, False
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            name = signal.Signals(-code).name if code < 0 and not hung else None
            return {"hung": hung, "signal": name, "exit_code": code if code >= 0 else None}
        time.sleep(0.01)
        if time.monotonic() > end and not hung:
            hung = True
            os.kill(pid, signal.SIGKILL)


def _read_results(folder: Path) -> dict[str, Any]:
    """Return what a fork has left: its fault, and its last place."""
    last = replay_position.read(folder / "trail.bin")
    try:
        fault = json.loads((folder / "trace.json").read_bytes()).get("fault")
    except (OSError, ValueError):
        fault = None
    return {"fault": fault, "place": last.place if last else None}
