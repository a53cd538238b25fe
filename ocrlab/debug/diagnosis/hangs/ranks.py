"""Ranks that wait for each other: which one is not where the others are.

Source: torch/distributed/distributed_c10d.py; every rank must call the same collectives in the same order.
"""

from __future__ import annotations

import re
from collections import Counter

from ocrlab.debug.diagnosis.hangs import stack_patterns
from ocrlab.debug.diagnosis.hangs.stack_patterns import HangFinding
from ocrlab.hardware.processes.stack_dumps import short
from ocrlab.hardware.processes.stack_types import Stack

COLLECTIVES = re.compile(
    r"^_?(all_reduce|reduce|broadcast|barrier|monitored_barrier|all_gather\w*|gather\w*|scatter\w*|reduce_scatter\w*|"
    r"all_to_all\w*|send|recv|wait|sync_module_states|sync_params_and_buffers|batch_isend_irecv|settle)"
)
MEETING = re.compile(r"rendezvous|init_process_group|_store_based_barrier|_create_c10d_store|TCPStore|new_group")
DISTRIBUTED = re.compile(
    r"torch/distributed/|torch/nn/parallel/distributed\.py|ocrlab/training/distributed/stop_agreement\.py"
)
BACKWARD = re.compile(r"torch/autograd/(graph|__init__)\.py")
SPAWNED = re.compile(r"(^|/)multiprocessing/spawn\.py$")  # multiprocessing's and torch's: no lock was copied by a fork
IN_BACKWARD = "all_reduce (DDP's, in backward)"  # it waits in C++, below this frame


def judge(stacks: list[Stack]) -> list[HangFinding]:
    """Return what keeps ranks from going on together; empty where fewer than one waits in a collective."""
    where = {stack.process.pid: _collective(stack) for stack in stacks if stack.threads}
    inside = {pid: name for pid, name in where.items() if name}
    if not inside:
        return []
    ranks = [stack for stack in stacks if stack.process.pid in inside or _may_be_rank(stack, stacks, inside)]
    names = Counter(inside.values())
    common = names.most_common(1)[0][0]
    waiting = [stack for stack in ranks if inside.get(stack.process.pid) == common]
    odd = [stack for stack in ranks if inside.get(stack.process.pid) != common]
    if odd:
        there = "; ".join(f"process {stack.process.pid} is in {_at(stack, inside)}" for stack in odd[:4])
        why = f"{len(waiting)} of {len(ranks)} ranks wait in {common}, but {there}"
        frames = odd[0].threads[0].frames[:6] + waiting[0].threads[0].frames[:4]
        return [HangFinding("dist.timeout_desync", 0.85, odd[0].process.pid, why, frames)]
    first = ranks[0]
    frames = first.threads[0].frames[:8]
    if MEETING.search(common):
        why = f"{len(ranks)} rank(s) wait in {common} for the others to come: one is missing, or cannot be reached"
        return [HangFinding("dist.network", 0.55, first.process.pid, why, frames), _misconfigured(first, why)]
    lines = {_place(stack) for stack in ranks}
    if len(ranks) > 1 and len(lines) > 1:
        why = f"all ranks wait in {common}, but called from different lines: {', '.join(sorted(lines)[:4])}"
        return [HangFinding("dist.timeout_desync", 0.8, first.process.pid, why, frames)]
    if len(ranks) > 1:
        why = f"all {len(ranks)} ranks wait in the same {common}: the connection between them is stuck"
        return [HangFinding("dist.network", 0.5, first.process.pid, why, frames)]
    why = f"this rank waits in {common} for others, whose stacks are not known"
    return [HangFinding("dist.timeout_desync", 0.6, first.process.pid, why, frames)]


def _misconfigured(first: Stack, why: str) -> HangFinding:
    return HangFinding("dist.misconfig", 0.4, first.process.pid, why, first.threads[0].frames[:4])


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
    """Tell whether a rank neither computes nor does anything else in its backward pass: it waits for the others.

    Ranks that mp.spawn starts tell their rank only to torch, and look like workers from outside.
    """
    main = stack.threads[0]
    frames = stack_patterns.python(main.frames)
    rank = stack.process.role == "rank" or any(SPAWNED.search(short(frame.file)) for frame in frames)
    return rank and not main.active and bool(frames) and BACKWARD.search(frames[0].file) is not None


def _may_be_rank(stack: Stack, stacks: list[Stack], inside: dict[int, str]) -> bool:
    """Tell whether a process is a sibling of those that wait in a collective, and no worker or tool of theirs."""
    parents = {other.process.parent for other in stacks if other.process.pid in inside}
    tool = stack.process.role in ("helper", "compiler", "tracker", "other")
    return bool(stack.threads) and not tool and stack.process.parent != 0 and stack.process.parent in parents


def _at(stack: Stack, inside: dict[int, str]) -> str:
    name = inside.get(stack.process.pid)
    return f"{name}, called in {_place(stack)}" if name else _place(stack)


def _place(stack: Stack) -> str:
    frames = stack.threads[0].frames
    return stack_patterns.place(stack_patterns.best(frames))
