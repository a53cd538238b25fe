"""Which worker a DataLoader waits for, and on which sample; or what it waits for when none of them is at work.

Source: torch/utils/data/dataloader.py (`_try_get_data`), _utils/worker.py (`_worker_loop`), _utils/fetch.py.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ocrlab.debug.diagnosis.catalogue import Level
from ocrlab.debug.diagnosis.hangs import locks, stack_patterns
from ocrlab.debug.diagnosis.hangs.stack_patterns import HangFinding, finding
from ocrlab.hardware.processes.stack_types import Frame, Stack, Thread

FEEDER = "QueueFeederThread"
UNPICKLABLE = re.compile(r"queues\.py\"?, line \d+, in _feed|Can't pickle|[Cc]annot pickle|PicklingError")


def explain_loader_wait(
    main: Stack, stacks: Sequence[Stack], before: Mapping[int, Stack], log: str
) -> list[HangFinding]:
    """Return why a process that waits in `_try_get_data` gets no batch."""
    parents = {stack.process.pid: stack.process.parent for stack in stacks}
    workers = [
        stack
        for stack in stacks
        if stack_patterns.is_worker(stack) and _below(stack.process.pid, main.process.pid, parents)
    ]
    at_work = [stack for stack in workers if not stack_patterns.idle(stack.threads[0].frames)]
    if not workers:
        why = "training waits for a batch from a worker, and no stack of a worker is known"
        return [finding(main, Level.POSSIBLE, why, main.threads[0].frames[:8], cause="loader.hang_sample")]
    if at_work:
        alone = len(at_work) == 1
        copied = not alone and all(locks.fork_lock(stack, main) for stack in at_work)
        reasons = (explain_worker(s, before.get(s.process.pid), main, alone=alone, copied=copied) for s in at_work)
        return [*itertools.chain.from_iterable(reasons)]
    return [_lost(main, workers, before, log)]


def explain_worker(
    stack: Stack, before: Stack | None, main: Stack | None = None, *, alone: bool = True, copied: bool = False
) -> list[HangFinding]:
    """Return why a worker does not come back with its batch; `copied`: all workers look like copies."""
    thread = stack.threads[0]
    frames, name, which = thread.frames, stack_patterns.process_name(stack), sample(thread.frames)
    why = f"{name} {_doing(thread)} in {stack_patterns.where(frames)}{f', {which}' if which else ''}"
    level = Level.DECISIVE if alone else Level.STRONG
    if stack_patterns.moved(thread, before):
        level = level.shifted(-2)
        why += "; it stood elsewhere a moment ago, so that it may only be slow"
    if why_not := locks.explain_self_deadlock(frames) or locks.explain_own_wait(frames):
        why += f"; {why_not}"
    slow = finding(stack, level, why, cause="loader.hang_sample")
    kind, index = stack_patterns.match_pattern(frames)
    if kind.startswith("hang."):  # the sample waits for something that has a name of its own
        inner = f"{name} is in {stack_patterns.place(frames[index])}"
        return [slow, finding(stack, level.shifted(-1), inner, frames[: index + 3], cause=kind)]
    locked = locks.fork_lock(stack, main)
    if locked is None:
        return [slow]
    locked = replace(locked, why=f"{locked.why}{f', {which}' if which else ''}")
    if copied:
        locked = replace(locked, level=locked.level.shifted(1))
    if locked.level.value < Level.STRONG.value:  # a sample that is at fault by itself looks the same
        return [replace(slow, level=level.at_most(Level.LIKELY)), replace(locked, level=Level.POSSIBLE)]
    return [locked, replace(slow, level=level.at_most(locked.level.shifted(-1)))]


def sample(frames: list[Frame]) -> str:
    """Return which sample a worker is at, from the locals of `fetch` and `__getitem__`; empty where unknown."""
    indices, batch = [], ""
    for frame in frames:
        if frame.file.endswith("_utils/worker.py"):
            break  # its idx counts batches
        values = [
            value for value in frame.locals.values() if not value.startswith("<")
        ]  # `self`, whatever it is called
        asked = frame.function.rpartition(".")[2].startswith("__getitem") and values[:1]
        indices += asked or [value for name, value in frame.locals.items() if name == "idx"]
        batch = frame.locals.get("possibly_batched_index", batch)
    single = [index for index in indices if not index.startswith(("[", "None"))]
    text = f"sample {single[0]}" if single else ""
    if single and single[-1] != single[0]:
        text += f" (the sampler's {single[-1]})"  # a Subset or the like lies between
    whole = f"the batch {batch}" if batch and "None" not in batch and batch not in single else ""
    return f"{text} of {whole}" if text and whole else text or whole


def _lost(main: Stack, workers: list[Stack], before: Mapping[int, Stack], log: str) -> HangFinding:
    """Return the finding for a batch that nobody works on any more: it died in a worker's feeder thread."""
    cause, level, more = "loader.hang_unpicklable", Level.LIKELY, ""
    feeders = [any(thread.name == FEEDER for thread in stack.threads) for stack in workers]
    moved = (stack_patterns.moved(stack.threads[0], before.get(stack.process.pid)) for stack in [main, *workers])
    if "Too many open files" in log or "received 0 items of ancdata" in log:
        cause, level, more = "host.fd_limit", Level.STRONG, ", for want of file descriptors"
    elif "can't start new thread" in log:
        cause, level, more = "host.thread_limit", Level.STRONG, ", for want of threads"
    elif UNPICKLABLE.search(log):
        level, more = Level.DECISIVE, "; the log shows that it could not be pickled"
    elif any(feeders) and not all(feeders):
        name = stack_patterns.process_name(workers[feeders.index(False)])
        level, more = Level.STRONG, f"; {name} has lost its feeder thread"
    elif all(change is False for change in moved):
        level = Level.STRONG
    why = "training waits for a batch, and every worker waits for work: the batch was lost on its way"
    return finding(main, level, why + more, main.threads[0].frames[:8], cause=cause)


def _doing(thread: Thread) -> str:
    if thread.gil or thread.active:
        return "is busy without end"
    if "nanosleep" in thread.wchan + thread.call:
        beside = thread.call.partition(" beside ")[2]
        return f"sleeps between two tries ({beside})" if beside else "sleeps"
    if thread.wchan.startswith("futex"):
        return "waits for a lock"
    return f"waits ({thread.call or thread.wchan})" if thread.call or thread.wchan else "waits"


def _below(pid: int, top: int, parents: Mapping[int, int]) -> bool:
    """Return whether a process was started by `top`, or through its forkserver; in pasted text nobody has a parent."""
    while pid and pid != top and pid in parents:
        pid = parents[pid]
    return pid in (0, top)
