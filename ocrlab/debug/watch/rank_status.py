"""The ranks of a watched training: how each has ended or where it stands, as facts and as a table to read."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ocrlab.errors import ConfigError
from ocrlab.hardware.processes import exit_codes
from ocrlab.hardware.processes.process_tree import Process, environment
from ocrlab.run_folder import heartbeat, launcher, watcher_link

FILE = "ranks.txt"


def gather(scratch: Path, beats: Path, family: Sequence[Process], log: str) -> list[dict[str, Any]]:
    """Return what is known of each rank, by its number; empty where the program has none.

    {"rank", "world", "pid", "pids" (its living processes), "end" (its own record), "exit_code", "signal", "state"
    (letter of proc(5), empty when gone), "step", "phase", "sample", "age" (seconds since its last heartbeat)}
    """
    ranks = {record["rank"]: dict(record) for record in launcher.read(scratch)}
    for ended in launcher.exits(scratch) or launcher.torchrun_failures(log):
        record = ranks.setdefault(ended["rank"], {"rank": ended["rank"], "pid": ended["pid"], "end": None})
        record["exit_code"] = ended["exit_code"]
    for process in family:
        if process.role in ("rank", "main"):
            with contextlib.suppress(ConfigError):  # a stranger's program keeps no records
                own = launcher.detect_ranks(environment(process))
                row = {"rank": own.rank, "world": own.world, "pid": process.pid, "end": None}
                if own.several:
                    ranks.setdefault(own.rank, row)
    pulse = {beat["pid"]: beat for beat in heartbeat.everyone(beats)}
    living = {process.pid: process for process in family}
    for record in ranks.values():
        pid, code = int(record["pid"]), record.get("exit_code")
        record["signal"] = exit_codes.signal_name(-code) if code is not None and code < 0 else None
        record["state"] = living[pid].state if pid in living else ""
        record["pids"] = [process.pid for process in family if _is_below(process, pid, living)]
        if pid in pulse:
            beat = pulse[pid]
            record |= {"step": beat["step"], "phase": beat["phase"], "sample": beat["sample"]}
            record["age"] = round(time.monotonic() - beat["time"], 1)
    world = max((int(record.get("world") or 0) for record in ranks.values()), default=0)
    return [{**ranks[rank], "world": max(world, len(ranks))} for rank in sorted(ranks)]


def keep(scratch: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Store how the ranks have ended in the run folder that they made, too, where `ocrlab diagnose` may look later."""
    owner = watcher_link.read_run(scratch)
    ended = [{name: row[name] for name in ("rank", "pid", "exit_code")} for row in rows if "exit_code" in row]
    if owner and ended and (owner[1] / "flight").is_dir():
        launcher.write_exits(owner[1] / "flight", ended)


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Return the ranks as text, one line each."""
    return "".join(f"{line(row)}\n" for row in rows)


def line(row: dict[str, Any]) -> str:
    """Return what is known of a rank in one line."""
    parts = [launcher.title(row)]
    end = row.get("end") or {}
    if row.get("signal"):
        parts.append(f"was killed by {row['signal']}")
    elif end.get("error") and end.get("how") == "failed":
        message = str(end["error"]["message"]).strip().partition("\n")[0][:300]  # of a bare `assert` there is nothing
        parts.append(f"failed: {end['error']['type']}: {message}".rstrip(": "))
    elif end:
        parts.append({"success": "succeeded", "stopped": "was asked to stop"}.get(end["how"], end["how"]))
    elif row.get("exit_code") is not None:
        parts.append(f"ended with exit status {row['exit_code']}, without a report")
    elif row["state"]:
        parts.append({"T": "is stopped", "t": "is stopped", "D": "waits in the kernel"}.get(row["state"], "lives"))
    else:
        parts.append("is gone")
    if "step" in row:
        sample = f", {row['sample']}" if row.get("sample") else ""
        parts.append(f"at step {row['step']} ({row['phase']}{sample}), last heartbeat {row['age']:g} s ago")
    return ", ".join(parts)


def _is_below(process: Process, rank: int, living: dict[int, Process]) -> bool:
    """Return whether a process is a rank or was started by it."""
    for _ in living:  # a chain of parents is not longer; reused numbers may make a circle
        if process.pid == rank or process.parent not in living:
            break
        process = living[process.parent]
    return process.pid == rank
