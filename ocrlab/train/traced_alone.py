"""Each sample of a batch by itself: the replaying process forks once for each, just before the step, and waits.

What a sample does to its fork (a crash, an endless operator) harms nobody else, and no program is started again for it.
One thread in each fork: a pool of threads does not survive fork(2). Shapes: B samples.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

from ocrlab import flight
from ocrlab.flight import trail

MOST = 16  # samples that are tried one by one; of more the batch is halved first


def each(seconds: float, out: Path, names: list[str], count: int) -> list[int]:
    """Fork for each part of a batch; returns the part in the forks. Ends the process itself with status 0 when all have
    ended, `out/alone.json` written: {"tried": [{"samples", "signal", "exit_code", "hung", "fault", "place"}]}.
    """
    tried: list[dict[str, Any]] = []
    todo = [[position] for position in range(count)] if count <= MOST else _halves(range(count))
    while todo:
        part = todo.pop(0)
        pid = os.fork()
        if pid == 0:
            torch.set_num_threads(1)
            return part
        told = _wait(pid, seconds) | _found(place(out, part))
        told |= {"samples": part, "names": [names[p] for p in part if p < len(names)]}
        tried.append(told)
        flight.write_json(out / "alone.json", {"schema": 1, "count": count, "tried": tried}, private=True)
        if _bad(told) and len(part) > 1:
            todo = _halves(part) + todo
        if not todo and not any(len(found["samples"]) == count - 1 for found in tried):
            todo = _rest(tried, count)
    os._exit(0)


def place(out: Path, part: list[int]) -> Path:
    """Return the folder of one part."""
    return out / ("alone-" + "-".join(map(str, part[:8])) + (f"-and-{len(part) - 8}" if len(part) > 8 else ""))


def _halves(part: Any) -> list[list[int]]:
    middle = (len(part) + 1) // 2
    return [half for half in (list(part[:middle]), list(part[middle:])) if half]


def _rest(tried: list[dict[str, Any]], count: int) -> list[list[int]]:
    """Return the batch without those that fail by themselves, to see that it goes well."""
    bad = {found["samples"][0] for found in tried if len(found["samples"]) == 1 and _bad(found)}
    rest = [position for position in range(count) if position not in bad]
    return [rest] if bad and len(rest) > 1 and len(rest) < count else []


def _bad(told: dict[str, Any]) -> bool:
    return bool(told["hung"] or told["signal"] or told["fault"] or told["exit_code"])


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


def _found(folder: Path) -> dict[str, Any]:
    """Return what a fork has left: its fault, and its last place."""
    last = trail.read(folder / "trail.bin")
    try:
        fault = json.loads((folder / "trace.json").read_bytes()).get("fault")
    except (OSError, ValueError):
        fault = None
    return {"fault": fault, "place": last.place if last else None}
