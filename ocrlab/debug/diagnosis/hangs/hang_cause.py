"""Which kind of hang it is, from the stacks of all processes of a program; the frames that show it are the evidence."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from ocrlab.debug.diagnosis.hangs import dataloader, locks, ranks, stack_patterns, wait_cycles
from ocrlab.debug.diagnosis.hangs.stack_patterns import HangFinding
from ocrlab.hardware.processes import stack_dumps as probe
from ocrlab.hardware.processes.stack_types import Stack
from ocrlab.records import Cause, Evidence

FILE = "stacks.txt"
UNSEEN = 0.5  # the most that is said of a program whose Python frames could not be read
STORAGE = re.compile(
    r"nfs|rpc_|fuse|ceph|lustre|cifs|9p|wait_on_page|folio_wait|io_schedule|lookup_slow|d_alloc_parallel"
)
DRIVER = re.compile(r"nvidia|uvm|^_nv\d+|os_acquire|rm_")
TERMINAL = re.compile(r"^read 0\b|^read \d+ /dev/(tty|pts)|n_tty_read|wait_woken.*tty")
PROGRAMS = ("main", "rank", "worker")
ENDED = "TtZX"  # states in which no frame tells anything more
WORDS = {
    "hang.build_lock": "waits for the lock of an extension build in",
    "hang.compile": "compiles in",
    "hang.cuda_init": "waits for the GPU driver to start in",
    "hang.gpu_kernel": "waits for the GPU in",
    "hang.tracker": "waits for the experiment tracker in",
    "hang.stopped": "waits for somebody to type in",
}


def rank_hang_causes(
    stacks: Sequence[Stack], facts: Mapping[str, Any], text: str | None = None, *, file: str = FILE
) -> list[Cause]:
    """Return what a hang may be, most probable first; empty where the stacks do not tell.

    `facts` may hold stacks_before (the same processes some seconds earlier: what moves is slow, not stuck) and log
    (the program's output). `text` is what the stacks were parsed from, in `file`; else they are numbered as
    `stacks.text` writes them.
    """
    lines = (text if text is not None else probe.text(stacks)).splitlines()
    return [
        Cause(
            finding.id,
            round(finding.confidence, 2),
            [Evidence(file, None, finding.why), *_evidence(finding, lines, file)],
        )
        for finding in find_hangs(stacks, facts)
    ]


def find_hangs(stacks: Sequence[Stack], facts: Mapping[str, Any]) -> list[HangFinding]:
    """Return the same as findings: with the process that each is about, and why, in one sentence."""
    before = {stack.process.pid: stack for stack in facts.get("stacks_before") or ()}
    log = str(facts.get("log") or "")
    everything = list(stacks)
    findings = [finding for stack in everything for finding in _stopped(stack, before)]
    findings += ranks.judge(everything)
    findings += wait_cycles.judge(everything, before)
    findings += _children(everything)
    for stack in everything:
        if _tells(stack):
            findings += _program(stack, everything, before, log, facts.get("silent_seconds"))
    best: dict[str, HangFinding] = {}
    for finding in sorted(findings, key=lambda finding: -finding.confidence):
        best.setdefault(finding.id, finding)
    return list(best.values())


def hang_fact(stacks: Sequence[Stack], facts: Mapping[str, Any], text: str | None = None) -> dict[str, Any] | None:
    """Return the most probable reading as the fact `hang` of an incident: id, confidence, pid, why, evidence."""
    findings, verdict = find_hangs(stacks, facts), rank_hang_causes(stacks, facts, text)
    if not findings:
        return None
    evidence = [asdict(item) for item in verdict[0].evidence if item.line is not None]
    best = findings[0]
    return {"id": best.id, "confidence": verdict[0].confidence, "pid": best.pid, "why": best.why, "evidence": evidence}


def _tells(stack: Stack) -> bool:
    """Tell whether a process is a Python program that lives, with frames that say where it stands."""
    framed = bool(stack.threads and stack.threads[0].frames)
    return framed and stack.how != "crash" and stack.process.role in PROGRAMS and stack.process.state not in ENDED


def _program(
    stack: Stack, stacks: list[Stack], before: Mapping[int, Stack], log: str, seconds: float | None
) -> list[HangFinding]:
    """Return what one Python program waits for, from the innermost frame of its main thread that tells."""
    main = stack.threads[0]
    kind, index = stack_patterns.match_pattern(main.frames)
    if kind == "loader.wait":
        return dataloader.judge(stack, stacks, before, log)
    if kind in ("loader.hang_sample", "loader.worker"):
        waited_for = stack.process.role == "worker" or any(
            stack_patterns.match_pattern(other.threads[0].frames)[0] == "loader.wait"
            for other in stacks
            if other.threads
        )
        return [] if waited_for else dataloader.worker(stack, before.get(stack.process.pid))
    if kind == "dist" or stack_patterns.idle(main.frames):
        return []
    if TERMINAL.search(main.call) or TERMINAL.search(main.wchan):
        return [_reads_terminal(stack, index)]
    if stack.how == "proc":  # no frame of Python's: what the kernel shows has many readings
        guesses = dataloader.from_outside(stack, stacks)
        if not guesses and stack.process.role != "worker":
            guesses = locks.judge(stack, stacks, before)
        return [replace(guess, confidence=min(guess.confidence, UNSEEN)) for guess in guesses]
    if kind == "hang.import":
        return [_import(stack, index, before)]
    if kind:
        why = f"process {stack.process.pid} {WORDS[kind]} {stack_patterns.place(main.frames[index])}"
        slower = 0.3 if stack_patterns.moved(main, before.get(stack.process.pid)) else 0.0
        return [HangFinding(kind, 0.85 - slower, stack.process.pid, why, main.frames[: index + 3])]
    return locks.judge(stack, stacks, before, seconds, log)


def _reads_terminal(stack: Stack, index: int) -> HangFinding:
    main = stack.threads[0]
    at = stack_patterns.place(stack_patterns.best(main.frames))
    why = f"process {stack.process.pid} waits for input ({main.call or main.wchan}) in {at}"
    return HangFinding("hang.stopped", 0.9, stack.process.pid, why, main.frames[: max(index, 0) + 4])


def _import(stack: Stack, index: int, before: Mapping[int, Stack]) -> HangFinding:
    """Return the finding for an import that does not come back, with the module and where it stands."""
    main = stack.threads[0]
    module = next(
        (f.locals["name"].strip("'\"") for f in main.frames[index:] if "importlib" in f.file and "name" in f.locals), ""
    )
    body = next((frame for frame in main.frames[:index] if frame.function == "<module>"), None)
    inner = main.frames[:index] or main.frames
    what = f"the import of {module}" if module else "the import"
    why = f"{what} does not come back; it stands in {stack_patterns.place(inner[0])}"
    if body is not None and body is not inner[0]:
        why += f", called by {stack_patterns.place(body)}"
    old, far = before.get(stack.process.pid), stack_patterns.far_end(main)
    why += f", where {far} does not answer" if far else ""
    confidence = 0.6 if stack_patterns.moved(main, old) else 0.9
    if main.active or main.gil:  # on a machine with other work to do an import may take minutes
        confidence = min(confidence, 0.7 if stack_patterns.still(main, old) else 0.45)
        why += "; it is busy, and may only be slow"
    return HangFinding("hang.import", confidence, stack.process.pid, why, main.frames[: index + 1][:8])


def _stopped(stack: Stack, before: Mapping[int, Stack]) -> list[HangFinding]:
    process, main = stack.process, stack.threads[0] if stack.threads else None
    frames = main.frames[:6] if main else []
    if process.state in "Tt" and process.role != "other":
        by = "by a debugger" if process.state == "t" else "by a signal (SIGSTOP, SIGTTIN, Ctrl-Z)"
        why = f"{process.role} {process.pid} is stopped {by}; it goes on after: kill -CONT {process.pid}"
        return [HangFinding("hang.stopped", 0.95, process.pid, why, frames)]
    if process.state != "D":
        return []
    old = before.get(process.pid)
    words = " ".join([stack.wchan, *(frame.function for frame in frames)])
    confidence = 0.55 if old is None else 0.8 if old.process.state == "D" else 0.35  # a disk is waited for now and then
    if DRIVER.search(words):
        why = f"process {process.pid} is stuck inside the GPU driver and cannot be killed ({stack.wchan})"
        return [HangFinding("hang.cuda_init", confidence, process.pid, why, frames)]
    what = "storage" if STORAGE.search(words) else "a device"
    why = f"process {process.pid} waits for {what} in uninterruptible sleep ({stack.wchan or 'unknown place'})"
    return [HangFinding("hang.stopped", confidence, process.pid, why, frames)]


def _children(stacks: list[Stack]) -> list[HangFinding]:
    """Return what programs that are not Python, and that somebody waits for, tell by their name."""
    findings = []
    for stack in stacks:
        process = stack.process
        if process.name == "nvidia-smi" or re.match(r"(\S*/)?nvidia-smi\b", process.command):
            why = f"nvidia-smi (pid {process.pid}) does not come back"
            findings.append(
                HangFinding(
                    "hang.cuda_init", 0.85, process.pid, why, stack.threads[0].frames[:4] if stack.threads else []
                )
            )
        elif process.role == "compiler" and process.state != "Z" and stack.how == "proc":  # Inductor's pool stays idle
            why = f"a compiler (pid {process.pid}, {process.name or process.command[:40]}) is at work or stuck"
            findings.append(HangFinding("hang.compile", 0.6, process.pid, why))
    return findings


def _evidence(finding: HangFinding, lines: list[str], file: str) -> list[Evidence]:
    """Return the lines of the stacks text on which the frames of a finding stand."""
    first = next((n for n, line in enumerate(lines) if re.match(rf"\s*Process {finding.pid}\b", line)), 0)
    evidence = []
    for frame in finding.frames:
        shown = {probe.line(frame).strip(), f'File "{frame.file}", line {frame.line} in {frame.function}'}
        shown.add(f'File "{frame.file}", line {frame.line}, in {frame.function}')
        order = [*range(first, len(lines)), *range(first)]
        at = next((number for number in order if lines[number].strip() in shown), None)
        if at is not None:
            evidence.append(Evidence(file, at + 1, lines[at].strip()))
    return evidence
