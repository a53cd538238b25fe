"""The ranks of a watched training: how each has ended or where it stands, as facts and as a table to read."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ocrlab.errors import ConfigError
from ocrlab.hardware.processes import signal_names
from ocrlab.hardware.processes.process_tree import Process, environment
from ocrlab.run_folder import heartbeat, launcher, torchrun_summary, watcher_link

FILE = "ranks.txt"


def gather(scratch: Path, beats: Path, family: Sequence[Process], log: str) -> list[dict[str, Any]]:
    """Return what is known of each rank, by its number; empty where the program has none.

    {"rank", "world", "pid", "pids" (its processes that live), "end" (its own word), "exit_code", "signal", "state"
    (letter of proc(5), empty when gone), "step", "phase", "sample", "age" (seconds since its last heartbeat)}
    """
    known = {one["rank"]: dict(one) for one in launcher.read(scratch)}
    for ended in launcher.exits(scratch) or torchrun_summary.failures(log):
        one = known.setdefault(ended["rank"], {"rank": ended["rank"], "pid": ended["pid"], "end": None})
        one["exit_code"] = ended["exit_code"]
    for one in _living(family):
        known.setdefault(one["rank"], one)
    pulse = {beat["pid"]: beat for beat in heartbeat.everyone(beats)}
    living = {process.pid: process for process in family}
    for one in known.values():
        pid, code = int(one["pid"]), one.get("exit_code")
        one["signal"] = signal_names.name(-code) if code is not None and code < 0 else None
        one["state"] = living[pid].state if pid in living else ""
        one["pids"] = [process.pid for process in family if _belongs(process, pid, living)]
        if pid in pulse:
            beat = pulse[pid]
            one |= {"step": beat["step"], "phase": beat["phase"], "sample": beat["sample"]}
            one["age"] = round(time.monotonic() - beat["time"], 1)
    world = max((int(one.get("world") or 0) for one in known.values()), default=0)
    return [{**known[rank], "world": max(world, len(known))} for rank in sorted(known)]


def keep(scratch: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Keep how the ranks have ended in the run folder that they made, too, where `ocrlab diagnose` may look later."""
    told = watcher_link.run_told(scratch)
    ended = [{name: one[name] for name in ("rank", "pid", "exit_code")} for one in rows if "exit_code" in one]
    if told and ended and (told[1] / "flight").is_dir():
        launcher.keep_exits(told[1] / "flight", ended)


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Return the ranks as text, one line each."""
    return "".join(f"{line(one)}\n" for one in rows)


def line(one: dict[str, Any]) -> str:
    """Return what is known of a rank in one line."""
    told = [launcher.title(one)]
    end = one.get("end") or {}
    if one.get("signal"):
        told.append(f"was killed by {one['signal']}")
    elif end.get("error") and end.get("how") == "failed":
        said = str(end["error"]["message"]).strip().partition("\n")[0][:300]  # of a bare `assert` there is nothing
        told.append(f"failed: {end['error']['type']}: {said}".rstrip(": "))
    elif end:
        told.append({"success": "did well", "stopped": "was told to stop"}.get(end["how"], end["how"]))
    elif one.get("exit_code") is not None:
        told.append(f"ended with exit status {one['exit_code']}, without a word")
    elif one["state"]:
        told.append({"T": "is stopped", "t": "is stopped", "D": "waits in the kernel"}.get(one["state"], "lives"))
    else:
        told.append("is gone")
    if "step" in one:
        sample = f", {one['sample']}" if one.get("sample") else ""
        told.append(f"at step {one['step']} ({one['phase']}{sample}), last heard {one['age']:g} s ago")
    return ", ".join(told)


def _living(family: Sequence[Process]) -> Iterator[dict[str, Any]]:
    """Yield the ranks that live, by what their launcher has told them: a stranger's program keeps no records."""
    for process in family:
        if process.role in ("rank", "main"):
            with contextlib.suppress(ConfigError):
                told = launcher.found(environment(process))
                if told.several:
                    yield {"rank": told.rank, "world": told.world, "pid": process.pid, "end": None}


def _belongs(process: Process, rank: int, living: dict[int, Process]) -> bool:
    """Tell whether a process is a rank or was started by it."""
    seen = 0
    while process.pid != rank and process.parent in living and seen < len(living):
        process, seen = living[process.parent], seen + 1
    return process.pid == rank
