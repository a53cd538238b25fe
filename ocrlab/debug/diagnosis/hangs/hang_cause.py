"""Which kind of hang it is, from the stacks of all processes of a program; the frames that show it are the evidence.

Ranks that wait for each other: every rank must call the same collectives in the same order; source:
torch/distributed/distributed_c10d.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from ocrlab.debug.diagnosis import catalogue
from ocrlab.debug.diagnosis.catalogue import Level
from ocrlab.debug.diagnosis.evidence import CONTEXT, Hit
from ocrlab.debug.diagnosis.hangs import dataloader, locks, stack_patterns
from ocrlab.debug.diagnosis.hangs.stack_patterns import HangFinding, finding, where
from ocrlab.debug.diagnosis.log_records import LoggedFrame, parse_stacks
from ocrlab.debug.diagnosis.log_text import LogText, clean_log
from ocrlab.hardware.processes import stack_dumps
from ocrlab.hardware.processes.stack_dumps import short
from ocrlab.hardware.processes.stack_types import Frame, Stack
from ocrlab.records import Evidence, Incident

COLLECTIVES = re.compile(
    r"^_?(all_reduce|reduce|broadcast|barrier|monitored_barrier|all_gather\w*|gather\w*|scatter\w*|reduce_scatter\w*|"
    r"all_to_all\w*|send|recv|wait|sync_module_states|sync_params_and_buffers|batch_isend_irecv|settle)"
)
MEETING = re.compile(r"rendezvous|init_process_group|_store_based_barrier|_create_c10d_store|TCPStore|new_group")
DISTRIBUTED = re.compile(
    r"torch/distributed/|torch/nn/parallel/distributed\.py|ocrlab/training/distributed/stop_together\.py"
)
BACKWARD = re.compile(r"torch/autograd/(graph|__init__)\.py")
SPAWNED = re.compile(r"(^|/)multiprocessing/spawn\.py$")  # multiprocessing's and torch's: no lock was copied by a fork
IN_BACKWARD = "all_reduce (DDP's, in backward)"  # it waits in C++, below this frame
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
    "hang.stopped": "waits for keyboard input in",
}
STACKS, LOG = "stacks.txt", "log_tail.txt"
UNTIMED = ("traceback", "gdb", "faulthandler", "crash")  # stacks that need not be of a program that hangs
MOST_LINES = 3  # lines of one kind of hang


def find_hangs(stacks: Sequence[Stack], facts: Mapping[str, Any]) -> list[HangFinding]:
    """Return what a hang may be, most probable first; empty where the stacks do not show it.

    `facts` may hold stacks_before (the same processes some seconds earlier: what moves is slow, not stuck) and log
    (the program's output).
    """
    before = {stack.process.pid: stack for stack in facts.get("stacks_before") or ()}
    log = str(facts.get("log") or "")
    findings = [*filter(None, (_stopped(stack, before) for stack in stacks))]
    findings += [*explain_rank_wait(stacks), *locks.find_wait_cycle(stacks, before), *_children(stacks)]
    for stack in stacks:
        findings += _program(stack, stacks, before, log, facts.get("silent_seconds"))
    best: dict[str, HangFinding] = {}
    for hang in sorted(findings, key=lambda hang: -hang.level.value):
        best.setdefault(hang.id, hang)
    return list(best.values())


def _program(
    stack: Stack, stacks: Sequence[Stack], before: Mapping[int, Stack], log: str, seconds: float | None
) -> list[HangFinding]:
    """Return what a living Python program waits for, from the innermost frame of its main thread that tells."""
    framed = bool(stack.threads and stack.threads[0].frames)
    if not framed or stack.how == "crash" or stack.process.role not in PROGRAMS or stack.process.state in ENDED:
        return []
    main = stack.threads[0]
    kind, index = stack_patterns.match_pattern(main.frames)
    if kind == "loader.wait":
        return dataloader.explain_loader_wait(stack, stacks, before, log)
    if kind in ("loader.hang_sample", "loader.worker"):
        mains = [other.threads[0].frames for other in stacks if other.threads]
        waits = any(stack_patterns.match_pattern(frames)[0] == "loader.wait" for frames in mains)
        return (
            []
            if waits or stack.process.role == "worker"
            else dataloader.explain_worker(stack, before.get(stack.process.pid))
        )
    if kind == "dist" or stack_patterns.idle(main.frames):
        return []
    if TERMINAL.search(main.call) or TERMINAL.search(main.wchan):
        why = f"process {stack.process.pid} waits for input ({main.call or main.wchan}) in {where(main.frames)}"
        return [finding(stack, Level.DECISIVE, why, main.frames[: max(index, 0) + 4], cause="hang.stopped")]
    if stack.how == "proc":  # no frame of Python's: what the kernel shows has many readings
        guesses = locks.explain_wait(stack, stacks, before) if stack.process.role != "worker" else []
        return [replace(guess, level=Level.POSSIBLE) for guess in guesses]
    if kind == "hang.import":
        return [_import(stack, index, before)]
    if kind:
        why = f"process {stack.process.pid} {WORDS[kind]} {stack_patterns.place(main.frames[index])}"
        level = Level.LIKELY if stack_patterns.moved(main, before.get(stack.process.pid)) else Level.STRONG
        return [finding(stack, level, why, main.frames[: index + 3], cause=kind)]
    return locks.explain_wait(stack, stacks, before, seconds, log)


def _import(stack: Stack, index: int, before: Mapping[int, Stack]) -> HangFinding:
    """Return the finding for an import that does not come back, with the module and where it stands."""
    main = stack.threads[0]
    names = [f.locals["name"] for f in main.frames[index:] if "importlib" in f.file and "name" in f.locals]
    module = names[0].strip("'\"") if names else ""
    body = next((frame for frame in main.frames[:index] if frame.function == "<module>"), None)
    inner = main.frames[:index] or main.frames
    what = f"the import of {module}" if module else "the import"
    why = f"{what} does not come back; it stands in {stack_patterns.place(inner[0])}"
    if body is not None and body is not inner[0]:
        why += f", called by {stack_patterns.place(body)}"
    old, far = before.get(stack.process.pid), stack_patterns.far_end(main)
    why += f", where {far} does not answer" if far else ""
    level = Level.LIKELY if stack_patterns.moved(main, old) else Level.DECISIVE
    if main.active or main.gil:  # on a machine with other work to do an import may take minutes
        level = Level.LIKELY if stack_patterns.still(main, old) else Level.POSSIBLE
        why += "; it is busy, and may only be slow"
    return finding(stack, level, why, main.frames[: index + 1][:8], cause="hang.import")


def _stopped(stack: Stack, before: Mapping[int, Stack]) -> HangFinding | None:
    process = stack.process
    if process.state in "Tt" and process.role != "other":
        by = "by a debugger" if process.state == "t" else "by a signal (SIGSTOP, SIGTTIN, Ctrl-Z)"
        why = f"{process.role} {process.pid} is stopped {by}; it goes on after: kill -CONT {process.pid}"
        return finding(stack, Level.DECISIVE, why, cause="hang.stopped")
    if process.state != "D":
        return None
    old = before.get(process.pid)
    frames = stack.threads[0].frames[:6] if stack.threads else []
    words = " ".join([stack.wchan, *(frame.function for frame in frames)])
    level = Level.LIKELY
    if old is not None:  # a disk is waited for now and then
        level = Level.STRONG if old.process.state == "D" else Level.POSSIBLE
    if DRIVER.search(words):
        why = f"process {process.pid} is stuck inside the GPU driver and cannot be killed ({stack.wchan})"
        return finding(stack, level, why, cause="hang.cuda_init")
    what = "storage" if STORAGE.search(words) else "a device"
    why = f"process {process.pid} waits for {what} in uninterruptible sleep ({stack.wchan or 'unknown place'})"
    return finding(stack, level, why, cause="hang.stopped")


def _children(stacks: Sequence[Stack]) -> list[HangFinding]:
    """Return what programs that are not Python, and that somebody waits for, tell by their name."""
    findings = []
    for stack in stacks:
        process = stack.process
        if process.name == "nvidia-smi" or re.match(r"(\S*/)?nvidia-smi\b", process.command):
            why = f"nvidia-smi (pid {process.pid}) does not come back"
            findings.append(finding(stack, Level.STRONG, why, cause="hang.cuda_init"))
        elif process.role == "compiler" and process.state != "Z" and stack.how == "proc":  # Inductor's pool stays idle
            why = f"a compiler (pid {process.pid}, {process.name or process.command[:40]}) is at work or stuck"
            findings.append(finding(stack, Level.LIKELY, why, [], cause="hang.compile"))
    return findings


def explain_rank_wait(stacks: Sequence[Stack]) -> list[HangFinding]:
    """Return what keeps ranks from going on together; empty where fewer than one waits in a collective."""
    inside = {stack.process.pid: name for stack in stacks if stack.threads and (name := _collective(stack))}
    if not inside:
        return []
    ranks = [stack for stack in stacks if stack.process.pid in inside or _may_be_rank(stack, stacks, inside)]
    names = Counter(inside.values())
    common = names.most_common(1)[0][0]
    waiting = [stack for stack in ranks if inside.get(stack.process.pid) == common]
    odd = [stack for stack in ranks if inside.get(stack.process.pid) != common]
    if odd:
        names_of = {pid: f"{name}, called in " for pid, name in inside.items()}
        places = [(s.process.pid, where(s.threads[0].frames)) for s in odd[:4]]
        there = "; ".join(f"process {pid} is in {names_of.get(pid, '')}{place}" for pid, place in places)
        why = f"{len(waiting)} of {len(ranks)} ranks wait in {common}, but {there}"
        frames = odd[0].threads[0].frames[:6] + waiting[0].threads[0].frames[:4]
        return [finding(odd[0], Level.STRONG, why, frames, cause="dist.timeout_desync")]
    first = ranks[0]
    frames = first.threads[0].frames[:8]
    if MEETING.search(common):
        why = f"{len(ranks)} rank(s) wait in {common} for the others to come: one is missing, or cannot be reached"
        return [
            finding(first, Level.LIKELY, why, frames, cause="dist.network"),
            finding(first, Level.POSSIBLE, why, frames[:4], cause="dist.misconfig"),
        ]
    lines = {where(stack.threads[0].frames) for stack in ranks}
    cause, level = "dist.timeout_desync", Level.LIKELY
    why = f"this rank waits in {common} for others, whose stacks are not known"
    if len(lines) > 1:
        level = Level.STRONG
        why = f"all ranks wait in {common}, but called from different lines: {', '.join(sorted(lines)[:4])}"
    elif len(ranks) > 1:
        cause, level = "dist.network", Level.POSSIBLE
        why = f"all {len(ranks)} ranks wait in the same {common}: the connection between them is stuck"
    return [finding(first, level, why, frames, cause=cause)]


def _collective(stack: Stack) -> str:
    """Return the outermost collective that the main thread waits in; empty where it is in none."""
    collective = ""
    for frame in stack_patterns.python(stack.threads[0].frames):
        name = frame.function.rpartition(".")[2]
        if DISTRIBUTED.search(frame.file) and (COLLECTIVES.match(name) or MEETING.search(name)):
            collective = name.lstrip("_")
    if not collective and _sleeps_in_backward(stack):
        return IN_BACKWARD
    return collective


def _sleeps_in_backward(stack: Stack) -> bool:
    """Return whether a rank neither computes nor does anything else in its backward pass: it waits for the others.

    Ranks that mp.spawn starts tell their rank only to torch, and look like workers from outside.
    """
    main = stack.threads[0]
    frames = stack_patterns.python(main.frames)
    rank = stack.process.role == "rank" or any(SPAWNED.search(short(frame.file)) for frame in frames)
    return rank and not main.active and bool(frames) and BACKWARD.search(frames[0].file) is not None


def _may_be_rank(stack: Stack, stacks: Sequence[Stack], inside: dict[int, str]) -> bool:
    """Return whether a process is a sibling of those that wait in a collective, and no worker or tool of theirs."""
    parents = {other.process.parent for other in stacks if other.process.pid in inside}
    tool = stack.process.role in ("helper", "compiler", "tracker", "other")
    return bool(stack.threads) and not tool and stack.process.parent != 0 and stack.process.parent in parents


def hang_fact(stacks: Sequence[Stack], facts: Mapping[str, Any], text: str | None = None) -> dict[str, Any] | None:
    """Return the fact `hang` of an incident: the most probable finding, and in `others` what else it may be.

    `text` is what the stacks were parsed from; else their lines are numbered as `stack_dumps.text` writes them.
    """
    written = parse_stacks(text if text is not None else stack_dumps.text(stacks))
    rows: list[dict[str, Any]] = []
    for hang in find_hangs(stacks, facts):
        own_first = sorted(written, key=lambda stack, pid=hang.pid: stack.process.pid != pid)  # type: ignore[misc]
        shown = [frame for stack in own_first for thread in stack.threads for frame in thread.frames]
        places = {(frame.function, frame.file, frame.line): _evidence(STACKS, frame) for frame in reversed(shown)}
        keys = [(frame.function, frame.file, frame.line) for frame in hang.frames]
        evidence = [asdict(places[key]) for key in keys if key in places]
        row = {"id": hang.id, "confidence": hang.level.value, "pid": hang.pid, "why": hang.why, "evidence": evidence}
        rows.append(row)
    return {**rows[0], "others": rows[1:]} if rows else None


def stack_hits(incident: Incident, texts: Sequence[LogText]) -> list[Hit]:
    """Return what stacks in an incident, or pasted into a log, support.

    The watcher judged those that it took while the processes still lived: its findings count, and are not made again.
    """
    fact = incident.facts.get("hang")
    if isinstance(fact, dict) and fact.get("id"):
        others = fact.get("others")
        return [hit for row in (fact, *(others if isinstance(others, list) else ())) for hit in _stored_hits(row)]
    pages = [page for page in texts if page.name != CONTEXT and "Fatal Python error" not in page.text]
    if STACKS in incident.texts:
        pages.insert(0, clean_log(STACKS, incident.texts[STACKS]))
    for page in pages:
        threads = any(not thread.fatal for thread in page.records.threads)  # the current one alone is where it crashed
        if not threads and all(stack.how in UNTIMED for stack in page.records.stacks):
            continue
        facts = {"log": incident.texts.get(LOG, ""), **incident.facts} if page.name == STACKS else incident.facts
        hangs = find_hangs(page.records.stacks, facts)
        hits = []
        for hang in hangs:
            lines = [_evidence(page.name, frame) for frame in hang.frames]
            hits += _hits(hang.id, hang.level, [Evidence(page.name, None, hang.why), *lines])
        return hits
    return []


def _evidence(name: str, frame: Frame) -> Evidence:
    return Evidence(name, frame.number, frame.text) if isinstance(frame, LoggedFrame) else Evidence(name, None, "")


def _stored_hits(row: Any) -> list[Hit]:
    """Return the hits of a finding that the watcher stored."""
    if not isinstance(row, dict) or row.get("id") not in catalogue.load().entries:
        return []
    lines = [Evidence(STACKS, line.get("line"), str(line.get("text", ""))) for line in row.get("evidence") or ()]
    level = Level.reached_by(float(row.get("confidence") or 0.0))
    return _hits(str(row["id"]), level, [Evidence("facts", None, str(row.get("why") or "")), *lines])


def _hits(cause: str, level: Level, lines: list[Evidence]) -> list[Hit]:
    return [Hit(cause, level, line, "its stack shows it") for line in lines[:MOST_LINES] if line.text]
