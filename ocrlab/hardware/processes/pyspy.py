"""py-spy, a program that reads the stacks of another Python process from outside, also while that holds the GIL."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ocrlab.hardware.processes import process_tree
from ocrlab.hardware.processes.stack_types import Frame, Thread

LAST_WAIT = 0.5  # seconds for a killed py-spy to be gone; by then its caller has gone on
HOPELESS = ("may not look", "No such file", "cannot be started")  # reasons that another try cannot change
TEXT = 160  # characters of a local variable
SHOWN_LOCALS = (  # code whose local variables are recorded, and which; all other values of a program stay private
    ("/torch/utils/data/", ("idx", "index", "possibly_batched_index", "worker_id")),
    ("<frozen importlib", ("name",)),
)


@functools.cache
def program() -> str | None:
    """Return the path of py-spy: beside this Python, on PATH, or where `pip install --target` put it; None for none."""
    beside = Path(sys.executable).parent / "py-spy"
    targets = (Path(entry) / "bin" / "py-spy" for entry in sys.path)
    return next((str(path) for path in (beside, *targets) if os.access(path, os.X_OK)), None) or shutil.which("py-spy")


def dump(process: process_tree.Process, end: float, *, native: bool = False) -> tuple[list[Thread], str]:
    """Return the Python threads of a process, main thread first, or none and the reason; `end` on the monotonic clock.

    A stopped or uninterruptible process is never attached to: a tracer that gives up leaves it stopped for good.
    """
    place = program()
    if place is None:
        return [], "py-spy is not installed"
    base = [place, "dump", "--json", "--pid", str(process.pid)]
    ways = [["--locals"], ["--locals", "--nonblocking"], ["--nonblocking"]]
    if native:
        ways = [["--native"]]  # it has no locals then
    elif process.state in "TtD":
        ways = ways[1:]
    reason = ""
    for way in ways:
        output, reason = _run([*base, *way], process, end)
        threads = _threads(output, process.pid)
        if threads:
            return threads, ""
        if time.monotonic() >= end or any(words in reason for words in HOPELESS):
            break
    return [], reason or "py-spy found no Python thread"


def _run(command: list[str], process: process_tree.Process, end: float) -> tuple[bytes, str]:
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        return b"", f"py-spy cannot be started: {error}"
    assert child.stdout is not None and child.stderr is not None, "both are pipes"
    with child.stdout, child.stderr:
        try:
            output, errors = child.communicate(timeout=max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(LAST_WAIT)
            # The SIGSTOP of the attaching may still be on its way to the process, whose tracer is dead now.
            now = process_tree.read_process(process.pid)
            if process.state not in "Tt" and now is not None and now.started == process.started:
                with contextlib.suppress(OSError):
                    os.kill(process.pid, signal.SIGCONT)
            return b"", "py-spy did not answer in time"
    return (output, "") if child.returncode == 0 else (b"", _reason(errors))


def _reason(errors: bytes) -> str:
    """Return py-spy's complaint in one line: its first sentence and the innermost cause."""
    lines = [line.strip() for line in errors.decode(errors="replace").partition("Stack backtrace")[0].splitlines()]
    lines = [line.removeprefix("Error: ") for line in lines if line and line != "Caused by:"]
    if not lines:
        return "py-spy failed without a word"
    if "ermission" in " ".join(lines):
        return "py-spy may not look into this process: it needs root, CAP_SYS_PTRACE or kernel.yama.ptrace_scope=0"
    return f"py-spy: {lines[0]}" + (f" ({lines[-1].lstrip('0123456789: ')})" if len(lines) > 1 else "")


def _threads(output: bytes, pid: int) -> list[Thread]:
    try:
        records = json.loads(output or b"[]")
    except ValueError:
        return []
    threads = [
        Thread(
            id=record.get("os_thread_id") or record.get("thread_id") or 0,
            name=record.get("thread_name") or ("MainThread" if record.get("os_thread_id") == record.get("pid") else ""),
            active=bool(record.get("active")),
            gil=bool(record.get("owns_gil")),
            frames=[_frame(frame) for frame in record.get("frames") or ()],
        )
        for record in records
    ]
    return sorted(threads, key=lambda thread: (thread.id != pid, thread.id))


def _frame(record: dict[str, Any]) -> Frame:
    function = record.get("name") or "?"
    if record.get("module"):  # native code: the library says more than the source file on somebody's build machine
        return Frame(function, os.path.basename(record["module"]), 0)
    file = record.get("filename") or ""
    variables = [local for local in record.get("locals") or () if local.get("repr")]
    names = [name for part, shown in SHOWN_LOCALS if part in file for name in shown]
    if function.rpartition(".")[2].startswith("__getitem"):
        names += [local["name"] for local in variables if local.get("arg") and local["name"] != "self"][:1]
    values = {local["name"]: str(local["repr"])[:TEXT] for local in variables if local["name"] in names}
    state = {local["name"]: str(local["repr"])[:TEXT] for local in variables}
    return Frame(function, file, record.get("line") or 0, values, state)
