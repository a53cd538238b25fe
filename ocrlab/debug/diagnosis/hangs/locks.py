"""Hangs that no library's frames explain: locks, endless loops, full pipes, threads that wait for each other."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ocrlab.debug.diagnosis.hangs import dataloader, self_deadlock, stack_patterns
from ocrlab.debug.diagnosis.hangs.stack_patterns import HangFinding
from ocrlab.hardware.processes.stack_dumps import short
from ocrlab.hardware.processes.stack_types import Frame, Stack, Thread

WAITS_FOR_A_CHILD = re.compile(
    r"(^|/)(subprocess|multiprocessing/popen_\w+)\.py|torch/multiprocessing/spawn\.py|torch/distributed/(elastic|run|launch)"
)
JOINS = re.compile(r"^(wait|_wait|_try_wait|poll|join|communicate|_communicate|_invoke_run|run|check_output)$")
WAITS_IN_PYTHON = ("threading.py", "queue.py", "concurrent/futures/_base.py", "synchronize.py", "queues.py")
ENDS = re.compile(r"(^|/)threading\.py _shutdown$|(^|/)concurrent/futures/thread\.py _python_exit$")
POOL = re.compile(r"(^|/)multiprocessing/pool\.py (\w+\.)?(wait|get|next)$")
POOLED = re.compile(r"(^|/)multiprocessing/pool\.py$")
DEAD = re.compile(  # what threading prints of a thread that an exception has ended
    r"^Exception in thread ([^\n]{1,80}):\n(?:Traceback [^\n]*\n)(?:[ \t][^\n]*\n){0,200}(\w[^\n]{0,300})", re.MULTILINE
)
FETCHES = re.compile(
    r"(^|/)(http/client|urllib/request|ftplib|torch/hub)\.py|(^|/)(urllib3|requests|httpx|httpcore|aiohttp|botocore|"
    r"huggingface_hub|fsspec|gdown)/"
)
SAME_VALUES = 0.45  # a loop in which no variable changes; what it does to objects and files cannot be seen
MAYBE_SLOW = 0.4  # a loop that changes something, or one in native code: no stack tells it from a long computation
MESSAGES = ("multiprocessing/connection.py", "selectors.py")
EVENT_LOOP = re.compile(r"(^|/)(asyncio/base_events|trio/_core/_run)\.py$")
ON_A_FILE = re.compile(r"^(?:flock|fcntl) \d+ (.+?)(?:, held by (.+))?$")


def judge(
    stack: Stack, stacks: list[Stack], before: Mapping[int, Stack], seconds: float | None = None, log: str = ""
) -> list[HangFinding]:
    """Return what the main thread of a process waits for, or loops in, when no frame of a library tells.

    `seconds` is for how long nothing has moved, where that is known; `log` is what the program has printed.
    """
    parent = next((other for other in stacks if other.process.pid == stack.process.parent), None)
    locked = dataloader.fork_lock(stack, parent)
    if locked:
        return [locked]
    main = stack.threads[0]
    pid, frames, old = stack.process.pid, main.frames, before.get(stack.process.pid)
    at = stack_patterns.place(stack_patterns.best(frames))
    if main.active or main.gil:
        return _loops(stack, main, old, seconds)
    full = _full_pipe(stack, stacks)
    if full:
        return [full]
    inner = stack_patterns.python(frames)[:1]
    file = inner[0].file if inner else ""
    if main.call.startswith("wait") or any(_waits_for_a_child(frame) for frame in frames):
        return []  # what the child does is the answer, and it is judged by itself
    others = [
        thread
        for thread in stack_patterns.busy(stack)[1:]
        if stack_patterns.own(thread.frames) or stack_patterns.match_pattern(thread.frames)[0]
    ]
    elsewhere = _another_thread(stack, others, old)
    if elsewhere:
        return [elsewhere]
    if _sleeps_on_a_lock(main, file):
        return [_lock(stack, stacks, others, log)]
    if file.endswith(MESSAGES):
        return [_message(stack, stacks, bool(others), at)]
    if address := stack_patterns.far_end(main):
        return [_far_away(main, pid, address)]
    if inner and not stack_patterns.is_library(inner[0]):
        does = "sleeps, wakes and sleeps again in" if "nanosleep" in main.call + main.wchan else "does not leave"
        return [HangFinding("hang.deadlock", 0.4, pid, f"the main thread {does} {at}", frames[:6])]
    if stack_patterns.own(frames) and main.call:
        why = f"the main thread does not come back from {stack_patterns.place(inner[0])}, called in {at}"
        return [HangFinding("hang.deadlock", 0.4, pid, why, frames[:6])]
    return []


def _far_away(main: Thread, pid: int, address: str) -> HangFinding:
    """Return what it is that a program waits for from the other end of a connection."""
    at = stack_patterns.place(stack_patterns.best(main.frames))
    fetches = any(FETCHES.search(short(frame.file)) for frame in main.frames)
    why = f"it waits in {at} for {address} to answer, without a time limit"
    return HangFinding(
        "io.download" if fetches else "hang.deadlock", 0.8 if fetches else 0.6, pid, why, main.frames[:6]
    )


def _message(stack: Stack, stacks: list[Stack], works: bool, at: str) -> HangFinding:
    """Return what a process waits to hear of: its own tasks, a pipe that nobody can write into any more, another one.

    `works` is whether another thread of it does something of its own, as one that feeds a queue.
    """
    main, pid = stack.threads[0], stack.process.pid
    files = [short(frame.file) for frame in main.frames]
    if any(map(EVENT_LOOP.search, files)):
        why = f"the event loop that runs in {at} waits, and no task of it goes on"
        return HangFinding("hang.deadlock", 0.5, pid, why, main.frames[:6])
    if main.call.endswith(", written by nobody else") and not works:
        ended = [
            str(child.process.pid) for child in stacks if child.process.parent == pid and child.process.state == "Z"
        ]
        why = f"it waits in {at} for a message, and no process is left that could send one"
        why += f": of its processes {', '.join(ended[:4])} ended" if ended else ""
        return HangFinding("hang.deadlock", 0.9, pid, why, main.frames[:6])
    whose = "a message of another process that does not come"
    if not any(file.endswith(MESSAGES[0]) for file in files):
        whose = "a socket or a pipe that does not become ready"
    return HangFinding("hang.deadlock", 0.5, pid, f"it waits in {at} for {whose}", main.frames[:6])


def _lock(stack: Stack, stacks: list[Stack], others: list[Thread], log: str) -> HangFinding:
    """Return what the lock is that the main thread sleeps on: who should have let it go, as far as that shows."""
    main, pid = stack.threads[0], stack.process.pid
    frames, at = main.frames, stack_patterns.place(stack_patterns.best(main.frames))
    living = [thread for thread in stack.threads[1:] if stack_patterns.own(thread.frames)]
    if frames and living and ENDS.search(f"{short(frames[0].file)} {frames[0].function}"):
        named = ", ".join(
            f"{_called(thread)} in {stack_patterns.place(stack_patterns.best(thread.frames))}" for thread in living
        )
        why = f"the program is at its end, and Python waits for thread {named}, which is no daemon"
        return HangFinding("hang.deadlock", 0.85, pid, why, living[0].frames[:4] + frames[:2])
    if twice := self_deadlock.explain_self_deadlock(frames):
        return HangFinding(
            "hang.deadlock", 0.9, pid, f"the main thread waits for a lock in {at}, and {twice}", frames[:6]
        )
    blocked = [thread for thread in others if _sleeps_on_a_lock(thread, _file(thread))]
    if blocked:
        named = ", ".join(
            f"{_called(thread)} in {stack_patterns.place(stack_patterns.best(thread.frames))}" for thread in blocked
        )
        why = f"the main thread waits for a lock or a thread in {at}, and so does {named}"
        return HangFinding("hang.deadlock", 0.85, pid, why, frames[:4] + blocked[0].frames[:4])
    if _lost_by_a_pool(stack, stacks):
        why = f"a worker of the pool has died with its task: the main thread waits for it in {at}, and all its workers "
        why += "wait for work"
        return HangFinding("hang.deadlock", 0.8, pid, why, frames[:6])
    dead = DEAD.search(log)
    if dead:
        why = f"the main thread waits in {at}, and thread {dead[1]} has died: {dead[2][:120]}"
        return HangFinding("hang.deadlock", 0.8, pid, why, frames[:6])
    file = ON_A_FILE.match(main.call)
    where = f" in {at}, held by process {file[2]}" if file and file[2] else f" in {at}"
    what = f"a lock on the file {file[1]}" if file else "a lock"
    sure = 0.8 if file and file[2] else 0.7
    return HangFinding("hang.deadlock", sure, pid, f"the main thread waits for {what}{where}", frames[:6])


def _lost_by_a_pool(stack: Stack, stacks: list[Stack]) -> bool:
    """Tell whether a process waits for a result of multiprocessing.Pool while none of the pool's workers is at work."""
    inside = any(POOL.search(f"{short(frame.file)} {frame.function}") for frame in stack.threads[0].frames)
    children = [child for child in stacks if child.process.parent == stack.process.pid and child.threads]
    workers = [child for child in children if any(POOLED.search(frame.file) for frame in child.threads[0].frames)]
    return inside and bool(workers) and all(stack_patterns.idle(child.threads[0].frames) for child in workers)


def _called(thread: Thread) -> str:
    return thread.name or str(thread.id)


def _waits_for_a_child(frame: Frame) -> bool:
    return bool(WAITS_FOR_A_CHILD.search(frame.file) and JOINS.match(frame.function.rpartition(".")[2]))


def _loops(stack: Stack, main: Thread, old: Stack | None, seconds: float | None) -> list[HangFinding]:
    """Return where the main thread uses the CPU: a suspicion at most, for a long computation looks the same."""
    pid, at = stack.process.pid, stack_patterns.place(stack_patterns.best(main.frames))
    if stack_patterns.synchronises(stack_patterns.own(main.frames)) and not main.gil and _has_gpu(stack):
        return [HangFinding("hang.gpu_kernel", 0.7, pid, f"it waits for the GPU in {at}", main.frames[:6])]
    if main.gil and not main.active:
        confidence = {None: 0.55, False: 0.75, True: 0.45}[stack_patterns.moved(main, old)]
        why = f"the main thread sleeps with Python's lock in its hand in {at}"
    else:
        still = main.gil and stack_patterns.still(main, old)
        confidence = SAME_VALUES if still else MAYBE_SLOW
        why = _busy(stack_patterns.best(main.frames), seconds) + ("" if main.gil else ", in native code called there")
        why += ": no variable changes in that loop" if still else "; it may be at work, or in a loop without end"
    return [HangFinding("hang.deadlock", confidence, pid, why, main.frames[:6])]


def _busy(frame: Frame | None, seconds: float | None) -> str:
    """Return where a thread uses the CPU: `busy at train.py:12 for 30 s, in fit`."""
    span = f" for {seconds:.0f} s" if seconds else ""
    if frame is None or not frame.line:
        return f"busy in native code{span}"
    return f"busy at {short(frame.file)}:{frame.line}{span}, in {frame.function}"


def _another_thread(stack: Stack, others: list[Thread], old: Stack | None) -> HangFinding | None:
    """Return why the thread that the main thread waits for does not come back."""
    pid = stack.process.pid
    for thread in others:
        if thread.frames and stack_patterns.QUEUES.search(thread.frames[0].file):
            continue  # a tracker's own threads, for one, wait for work all the time
        kind, index = stack_patterns.match_pattern(thread.frames)
        if kind.startswith("hang."):
            why = f"thread {thread.name or thread.id} is in {stack_patterns.place(thread.frames[index])}"
            return HangFinding(kind, 0.7, pid, why, thread.frames[:6])
    for thread in others:
        if thread.active or thread.gil:
            same = thread.gil and stack_patterns.still(thread, old)
            why = f"{_busy(stack_patterns.best(thread.frames), None)}, in thread {_called(thread)}"
            why += "; the main thread waits for it"
            why += ": no variable changes in that loop" if same else "; it may be at work, or in a loop without end"
            return HangFinding("hang.deadlock", SAME_VALUES if same else MAYBE_SLOW, pid, why, thread.frames[:6])
    return None


def _full_pipe(stack: Stack, stacks: list[Stack]) -> HangFinding | None:
    """Return a finding if a child is stuck writing into a pipe while its parent waits for it to end."""
    for child in stacks:
        main = child.threads[0] if child.threads else None
        if main is not None and child.process.parent == stack.process.pid and main.wchan.endswith("pipe_write"):
            why = f"process {stack.process.pid} waits for {child.process.pid}, which waits to write into a full pipe"
            return HangFinding("hang.deadlock", 0.85, stack.process.pid, why, stack.threads[0].frames[:6])
    return None


def _sleeps_on_a_lock(thread: Thread, file: str) -> bool:
    futex = thread.wchan.startswith("futex") or thread.call.startswith("futex")
    return futex or file.endswith(WAITS_IN_PYTHON) or thread.call.startswith(("flock", "fcntl"))


def _file(thread: Thread) -> str:
    return thread.frames[0].file if thread.frames else ""


def _has_gpu(stack: Stack) -> bool:
    native = " ".join(frame.file for frame in stack.threads[0].frames if not frame.line)
    return "libcuda" in native or any("/dev/nvidia" in thread.call for thread in stack.threads)
