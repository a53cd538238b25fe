"""Does anything lie when everything is killed at a random moment? 100 times, other numbers as argument.

A program with workers and a daemon of its own session runs under `ocrlab watch`; some or all of watcher, guard, program
and workers are killed by SIGKILL, at once or shortly after each other, so that verdicts are being written meanwhile.
Must: never a green verdict or sentinel, never a file that cannot be read, no process left.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import table

from ocrlab import run_folder
from ocrlab.errors import OcrlabError

MARK = "OCRLAB_BENCH_MARK"
PROGRAM = """
import multiprocessing, subprocess, sys, time
def worker():
    while True: time.sleep(0.05)
if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    for _ in range(2): multiprocessing.Process(target=worker).start()
    subprocess.Popen(["sleep", "300"], start_new_session=True)
    while True: print("x" * 1000, flush=True); time.sleep(0.001)
"""
LATEST = 1.5  # seconds after the start, of the first kill
GONE = 10.0  # seconds within which everything must be gone
KINDS = ("watcher", "guard", "program", "workers", "program, then watcher", "all at once", "all, one by one")


def main() -> int:
    """Run it and return the exit status."""
    parser = table.parser(__doc__)
    parser.add_argument("rounds", type=int, nargs="?", default=100, help="how often (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments (default 0)")
    options = parser.parse_args()
    dice, wrong, done = random.Random(options.seed), Counter[tuple[str, str]](), Counter[str]()
    for number in range(options.rounds):
        kind = KINDS[number % len(KINDS)]
        done[kind] += 1
        for problem in once(kind, dice, f"{os.getpid()}-{number}"):
            wrong[kind, problem] += 1
    problems = ("green", "unreadable", "orphan")
    rows: list[tuple[object, ...]] = [
        (kind, done[kind], *(wrong[kind, problem] for problem in problems)) for kind in KINDS if done[kind]
    ]
    totals = [sum(count for (_, what), count in wrong.items() if what == problem) for problem in problems]
    rows.append(("in all", options.rounds, *totals))
    for problem, count in zip(problems, totals, strict=True):
        table.figure(f"{problem} after {options.rounds} kills", count, "runs", limit="<= 0")
    body = table.markdown(("killed", "times", *problems), rows) + f"\n\nMust: none. {table.judged(not wrong)}."
    table.publish("diagnosis-kills", table.page("Everything is killed", body), options)
    return int(bool(wrong))


def once(kind: str, dice: random.Random, mark: str) -> list[str]:
    """Start, kill, look; returns what is wrong."""
    with tempfile.TemporaryDirectory(prefix="ocrlab-bench-") as folder:
        run = Path(folder, "run")
        command = [sys.executable, "-m", "ocrlab", "watch", "--run-dir", str(run), "--", sys.executable, "-c", PROGRAM]
        watcher = subprocess.Popen(
            command, env={**os.environ, MARK: mark}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(dice.random() * LATEST)
        groups = chosen(kind, watcher.pid, mark, dice)
        for victims in groups:
            for pid in victims:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(dice.random() * 0.2)
        end = time.monotonic() + GONE
        if kind == "workers" or not any(groups):  # the program goes on, as it should; a person ends it
            watcher.terminate()
        while (left := marked(mark)) and time.monotonic() < end:
            time.sleep(0.02)
            watcher.poll()
        status = watcher.wait(GONE) if not left else None
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        watcher.wait()
        return (["orphan"] if left else []) + lies(run, status)


def chosen(kind: str, watcher: int, mark: str, dice: random.Random) -> list[list[int]]:
    """Return the groups of processes to kill, one after the other."""
    guard = children(watcher)[:1]
    program = [pid for parent in guard for pid in children(parent)][:1]
    workers = [pid for parent in program for pid in children(parent)]
    everyone = [watcher, *guard, *program, *workers]
    groups = {
        "watcher": [[watcher]],
        "guard": [guard],
        "program": [program],
        "workers": [workers],
        "program, then watcher": [program, [watcher]],
        "all at once": [[watcher, *guard, *program, *marked(mark)]],
        "all, one by one": [[pid] for pid in dice.sample(everyone, len(everyone))],
    }
    return groups[kind]


def lies(run: Path, status: int | None) -> list[str]:
    """Return what the run folder says that is not so."""
    problems = ["green"] if status == 0 or (run / ".SUCCESS").exists() else []
    with contextlib.suppress(OcrlabError):
        problems += ["green"] if run_folder.status(run).status == "success" else []
    for path in [*run.rglob("*.json"), *(run / name for name in (".RUNNING", ".FAILURE"))]:
        try:
            record = json.loads(path.read_bytes())
        except FileNotFoundError:
            continue
        except ValueError:
            problems.append("unreadable")
            continue
        if path.name == "verdict.json" and record.get("status") not in ("failed", "killed", "hung"):
            problems.append("green")
    return problems


def children(pid: int) -> list[int]:
    """Return the pids of the children of a process."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def marked(mark: str) -> list[int]:
    """Return the living processes that have the mark of a round in their environment."""
    pids = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and f"{MARK}={mark}\0".encode() in Path("/proc", name, "environ").read_bytes() + b"\0":
                pids.append(int(name))
    return pids


if __name__ == "__main__":
    sys.exit(main())
