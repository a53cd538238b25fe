"""Processes that wait for each other in a ring: nobody outside of it can wake them, however long one waits.

A process is in it if everybody who could wake it is in it too. Who that is stands in its system call, as
`probes.held` and `probes.threads` write it: the other end of a pipe, the holder of a lock, the child waited for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ocrlab.debug.diagnosis.hangs import dataloader, stack_patterns
from ocrlab.debug.diagnosis.hangs.stack_patterns import HangFinding
from ocrlab.hardware.processes.stack_types import Stack, Thread

NAMED = re.compile(r"^(read|write|flock|fcntl) .*, (?:written|read|held) by (\d+(?:, \d+)*)$")
CHILD = re.compile(r"^wait4(?: (\d+))?$")
SURE = 0.92
MOST = 4  # processes that are told


def judge(stacks: list[Stack], before: Mapping[int, Stack]) -> list[HangFinding]:
    """Return the ring that processes wait in, if there is one; parents come first in `stacks`."""
    by_pid = {stack.process.pid: stack for stack in stacks if stack.threads and stack.process.state not in "ZX"}
    asked = {pid: _wakers(stack, by_pid) for pid, stack in by_pid.items()}
    ring = {
        pid: wakers
        for pid, wakers in asked.items()
        if wakers and not stack_patterns.moved(by_pid[pid].threads[0], before.get(pid))
    }
    while outside := [pid for pid, wakers in ring.items() if not wakers <= ring.keys()]:
        for pid in outside:
            del ring[pid]
    if not ring:
        return []
    chain = [next(iter(ring))]
    while (following := min(ring[chain[-1]])) not in chain:
        chain.append(following)
    chain = chain[chain.index(following) :] if len(chain) > MOST else chain
    links = [by_pid[pid] for pid in chain[:MOST]]
    why = "; ".join(_says(stack, ring[stack.process.pid]) for stack in links) + ": nobody is left to wake them"
    frames = [frame for stack in links for frame in _waiting(stack).frames[:4]]
    return [HangFinding("hang.deadlock", SURE, chain[0], why, frames[:8])]


def _wakers(stack: Stack, by_pid: Mapping[int, Stack]) -> set[int] | None:
    """Return the only processes that could wake a process; None where that is not known, or one of its threads works.

    What a main thread that waits for another thread of its own waits for is what that one waits for.
    """
    pid, thread = stack.process.pid, _waiting(stack)
    others = [
        other for other in stack_patterns.busy(stack)[1:] if other is not thread and stack_patterns.own(other.frames)
    ]
    if others or thread.active or thread.gil:
        return None
    call = thread.call
    if match := NAMED.match(call):
        return set(map(int, match[2].split(", "))) - {pid}
    if match := CHILD.match(call):
        children = {child for child, other in by_pid.items() if other.process.parent == pid}
        return {int(match[1])} if match[1] else children
    if call == "futex shared" and stack.how == "py-spy":
        return {child for child, other in by_pid.items() if child != pid and other.how == "py-spy"}
    if stack_patterns.match_pattern(thread.frames)[0] == "loader.wait":
        workers = (child for child in by_pid.values() if child.process.parent == pid and dataloader.is_worker(child))
        return {child.process.pid for child in workers if not stack_patterns.idle(child.threads[0].frames)}
    return None


def _waiting(stack: Stack) -> Thread:
    """Return the thread that tells what a process waits for: the one that is joined where it is the only one."""
    main = stack.threads[0]
    others = [thread for thread in stack.threads[1:] if thread.frames]
    return others[0] if stack_patterns.joins(stack_patterns.python(main.frames)) and len(others) == 1 else main


def _says(stack: Stack, wakers: set[int]) -> str:
    """Return what a process waits for, in words."""
    thread = _waiting(stack)
    who, whom = dataloader.named(stack), ", ".join(map(str, sorted(wakers)))
    own = stack_patterns.own(thread.frames)
    at = stack_patterns.place(own) if own else thread.name or stack.process.name
    kind = thread.call.partition(" ")[0]
    what = {
        "read": f"for a word from {whom} in a pipe",
        "write": f"for {whom} to read from a full pipe",
        "wait4": f"for the end of {whom}",
        "flock": f"for the lock on a file, held by {whom},",
        "fcntl": f"for the lock on a file, held by {whom},",
        "futex": "for a lock that processes share",
    }.get(kind, f"for its workers {whom}")
    return f"{who} waits {what} in {at}"
