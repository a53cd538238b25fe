"""Is the doctor's report complete whatever a check does? Faults planted in every check, one after the other.

python benchmarks/diagnosis_doctor.py

The ladder is climbed once as it is, which gives its time on this machine. Then each check in turn, those that this
machine would skip too, is replaced by a child that hangs, dies of SIGILL or SIGSEGV, prints 1 GB, leaves with 0 and no
answer, sends garbage, or answers in another form; the other checks give the answers of the first climb. A report is
complete when all ten steps are in it, every check has a finding, the planted one fails, and no process is left.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from table import figure, judged, markdown, page, parser, publish

from ocrlab.hardware.doctor import doctor_job, probe_runner
from ocrlab.hardware.doctor.check_spec import Options, Probe
from ocrlab.records import Check

PLANTED = """
import ctypes, mmap, os, time

def hang(**given):
    time.sleep(1e6)

def SIGILL(**given):
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes.fromhex("62f1fd48ffff"))
    ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()

def SIGSEGV(**given):
    ctypes.string_at(0)

def flood(**given):
    for _ in range(1024):
        os.write(1, b"x" * (1 << 20))

def silent(**given):
    os._exit(0)

def garbage(**given):
    for name in os.listdir("/proc/self/fd"):
        try:
            if "pipe" in os.readlink(f"/proc/self/fd/{name}"):
                os.write(int(name), b"\\x00\\xff{no json\\n")
        except OSError:
            pass

def another_form(**given):
    return {"something": ["else"]}
"""
FAULTS = {
    "hang": "never returns",
    "SIGILL": "dies of SIGILL",
    "SIGSEGV": "dies of SIGSEGV",
    "flood": "prints 1 GB",
    "silent": "exit 0 without an answer",
    "garbage": "garbage instead of JSON",
    "another_form": "JSON of another form",
}
DEADLINE, IDLE = 4.0, 1.0  # seconds; the true limits only make the benchmark longer
WHOLE, TORCHLESS = 30.0, 5.0  # seconds that the issue allows on two cores
TORCH = {"import torch", "import torchvision", "torch and the GPU", "smoke test: CPU", "smoke test: GPU"}
TORCH |= {"DataLoader by fork", "DataLoader by spawn"}


@contextmanager
def children(run: Any) -> Iterator[None]:
    """Let the ladder start its children by `run`."""
    real, probe_runner.run = probe_runner.run, run
    try:
        yield
    finally:
        probe_runner.run = real


def climb(options: Options) -> tuple[list[Check], dict[str, probe_runner.ProbeResult], float]:
    """Climb the real ladder and return its findings, what became of each child, and the seconds it took."""
    answers, real = {}, probe_runner.run

    def recorded(python: str, file: Path, function: str, arguments: Any, **more: Any) -> probe_runner.ProbeResult:
        ran = answers[key(file, function, arguments)] = real(python, file, function, arguments, **more)
        return ran

    began = time.monotonic()
    with children(recorded):
        checks = doctor_job.run(options)
    return checks, answers, time.monotonic() - began


def key(file: Path, function: str, arguments: Any) -> str:
    """Return what tells one child from all others."""
    return f"{file.stem} {function} {sorted(arguments.items())}"


def planted(
    ask: Probe,
    fault: str,
    probe: Path,
    every: list[Probe],
    answers: dict[str, probe_runner.ProbeResult],
    options: Options,
) -> bool:
    """Return whether the report is complete with a fault in one check; the others answer as they did."""
    real = probe_runner.run

    def replayed(python: str, file: Path, function: str, arguments: Any, **more: Any) -> probe_runner.ProbeResult:
        if file == probe:
            return real(python, file, function, arguments, **more)
        return answers.get(key(file, function, arguments)) or probe_runner.ProbeResult(done=True)

    broken = replace(ask, probe=probe, function=fault, after=(), skip=lambda facts: None, deadline=DEADLINE, idle=IDLE)
    with children(replayed):
        checks = doctor_job.run(options, planned=[broken if other is ask else other for other in every])
    mine = [check for check in checks if check.name == ask.name]
    return (
        {check.step for check in checks} == set(range(1, 11))
        and [check.judgement for check in mine] == ["fail"]
        and len(checks) >= len(every)
        and not left()
    )


def left() -> list[int]:
    """Return the processes that a child of this benchmark has left behind."""
    mark = f"{probe_runner.MARK}={os.getpid()}-".encode()
    pids = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(pid) != os.getpid() and mark in Path(f"/proc/{pid}/environ").read_bytes():
                pids.append(int(pid))
        except OSError:
            continue
    return pids


def main() -> int:
    """Print the page; 1 where a report is not complete or the ladder takes too long."""
    args = parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options, probe = Options(sys.executable, Path(folder)), Path(folder) / "planted.py"
        probe.write_text(PLANTED, encoding="utf-8")
        checks, answers, seconds = climb(options)
        quick = doctor_job.asks(options)
        began = time.monotonic()
        doctor_job.run(options, planned=[ask for ask in quick if ask.name not in TORCH])
        torchless = time.monotonic() - began
        rows, complete, count = [], 0, 0
        for fault, words in FAULTS.items():
            every, good, longest = doctor_job.asks(options), 0, 0.0
            for ask in every:
                began = time.monotonic()
                good += planted(ask, fault, probe, every, answers, options)
                longest = max(longest, time.monotonic() - began)
            rows.append((words, len(every), good, f"{longest:.1f}"))
            complete, count = complete + good, count + len(every)
    counts = ", ".join(f"{sum(c.judgement == word for c in checks)} {word}" for word in ("fail", "warn", "ok", "skip"))
    met = [complete == count, seconds <= WHOLE, torchless <= TORCHLESS]
    figure("complete reports of the doctor", complete / count, "share", limit=">= 1")
    figure("the whole ladder of the doctor", seconds, "s", limit=f"<= {WHOLE}")
    figure("the part of the doctor that needs no torch", torchless, "s", limit=f"<= {TORCHLESS}")
    limits = [
        ("complete reports", f"{complete} of {count}", "all", judged(met[0])),
        ("the whole ladder", f"{seconds:.1f} s ({counts})", f"{WHOLE:.0f} s on two cores", judged(met[1])),
        ("the part that needs no torch", f"{torchless:.1f} s", f"{TORCHLESS:.0f} s", judged(met[2])),
    ]
    body = markdown(("figure", "measured", "must", ""), limits) + "\n\n"
    body += markdown(("planted", "checks", "complete reports", "longest ladder, s"), rows)
    body += f"\n\nA planted child has {DEADLINE:.0f} s here, {IDLE:.0f} s without work."
    publish("diagnosis-doctor", page("Is the doctor's report complete whatever a check does?", body), args)
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
