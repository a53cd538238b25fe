"""The stacks of many processes at once, within a deadline: py-spy where allowed, else faulthandler, else /proc."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from ocrlab.hardware.processes import blocked_on, faulthandler_text, process_tree, pyspy
from ocrlab.hardware.processes import kernel_threads as kernel
from ocrlab.hardware.processes.process_tree import Process
from ocrlab.hardware.processes.stack_types import Frame, Stack, Thread

__all__ = ["Frame", "Process", "Stack", "Thread", "short", "take", "text"]

AT_ONCE = 16  # processes that are looked at side by side
NATIVE = 3  # processes whose native frames are read, which costs 0.7 s of CPU each where torch is loaded
NATIVE_SECONDS = 0.3  # less time than this is not enough for it
PENDING = "py-spy did not answer in time"
WAITS_IN_PYTHON = re.compile(
    r"(^|/)(threading|queue|queues|synchronize|selectors|connection|socket|ssl|subprocess|popen_\w+)\.py$"
)
DARK = ("futex", "poll_schedule", "do_sys_poll", "nv", "uvm", "os_acquire")  # where libraries sleep on a lock or device
INSTALLED = re.compile(r".*/(?:(?:site|dist)-packages|lib/python\d[\d.]*)/")


def take(processes: Sequence[Process], deadline_s: float, *, native: bool = True) -> list[Stack]:
    """Return a stack for each process, in their order, after `deadline_s` seconds at the latest.

    Where a process does not answer in time, or may not be looked into, its stack holds what the kernel shows. With
    `native`, native frames are read too where Python's leave open what a main thread does.
    """
    end = time.monotonic() + deadline_s
    stacks = {process.pid: Stack(process, why_not="there was no time to look") for process in processes}
    _side_by_side(stacks, processes, end, _kernel_view)
    open_ones = [process for process in processes if stacks[process.pid].why_not == PENDING]
    _side_by_side(stacks, open_ones, end, lambda process, end: _python_frames(stacks[process.pid], end))
    dark = [process for process in processes if _needs_native(stacks[process.pid])][:NATIVE]
    if native and dark and end - time.monotonic() > NATIVE_SECONDS:
        _side_by_side(stacks, dark, end, lambda process, end: _native(stacks[process.pid], end))
    return blocked_on.name_owners([stacks[process.pid] for process in processes])


def text(stacks: Sequence[Stack]) -> str:
    """Return stacks in the format of `py-spy dump`, one header a process; `diagnose.stacktext` reads it back."""
    lines: list[str] = []
    for stack in stacks:
        process = stack.process
        lines += [f"Process {process.pid}: {process.command}"]
        asleep = f", sleeps in {stack.wchan}" if stack.wchan else ""
        why_not = f"; {stack.why_not}" if stack.why_not else ""
        state = f"state {process.state}, {process.threads} threads, from {stack.how}"
        lines += [f"# {process.role}, {state}{asleep}{why_not}", ""]
        for thread in stack.threads:
            state = ("active" if thread.active else "idle") + ("+gil" if thread.gil else "")
            name = f': "{thread.name}"' if thread.name else ""
            lines += [f"Thread {thread.id} ({state}){name}"]
            lines += [f"    # waits in {thread.call or thread.wchan}"] if thread.call or thread.wchan else []
            for frame in thread.frames:
                lines += [f"    {frame.function} ({short(frame.file)}{f':{frame.line}' if frame.line else ''})"]
                lines += ["        Locals:"] if frame.locals else []
                lines += [f"            {name}: {value}" for name, value in frame.locals.items()]
        lines += [""]
    return "\n".join(lines)


def short(file: str) -> str:
    """Return a file without the folder in which packages are installed."""
    return INSTALLED.sub("", file)


def _side_by_side(
    stacks: dict[int, Stack], processes: Sequence[Process], end: float, look: Callable[[Process, float], Stack]
) -> None:
    """Replace the stacks of some processes, a few at a time, until all are done or the time is over."""
    left = deque(processes)

    def work() -> None:
        while time.monotonic() < end:
            try:
                process = left.popleft()
            except IndexError:
                return
            stacks[process.pid] = look(process, end)

    # Threads of our own, not a pool: one that /proc keeps for ever (a locked memory map) is left behind, never joined.
    crew = [threading.Thread(target=work, daemon=True) for _ in range(min(AT_ONCE, len(left)))]
    for member in crew:
        member.start()
    for member in crew:
        member.join(max(0.0, end - time.monotonic()))


def _kernel_view(process: Process, end: float) -> Stack:
    """Return what the kernel shows of a process, with the reason why it will stay at that, or PENDING."""
    now = process_tree.read_process(process.pid)
    if now is None or now.started != process.started:
        return Stack(process, why_not="it has ended meanwhile")
    process = replace(process, state=now.state, cpu_seconds=now.cpu_seconds, threads=now.threads)
    if now.state in "ZX":
        return Stack(process, why_not="it has ended, and its parent has not asked how (a zombie)")
    threads = kernel.view(process.pid)
    python = now.state == "D" or kernel.is_python(process.pid)  # in D the memory map may be locked
    wchan = threads[0].wchan if threads else ""
    return Stack(process, threads, "proc", wchan, PENDING if python else "not a Python program")


def _python_frames(stack: Stack, end: float) -> Stack:
    """Return Python's frames of a process: from py-spy, else from faulthandler, else as it was with the reason why."""
    process, kernel_threads = stack.process, stack.threads
    threads, reason = pyspy.dump(process, end)
    if threads:
        return Stack(process, _merged(threads, kernel_threads), "py-spy", stack.wchan)
    threads = faulthandler_text.ask(process, end)
    if not threads:
        return replace(stack, why_not=reason)
    call = kernel_threads[0].call if kernel_threads else ""
    main = replace(threads[0], active=process.state == "R", wchan=stack.wchan, call=call)
    return Stack(process, [main, *threads[1:]], "faulthandler", stack.wchan, reason)


def _merged(threads: list[Thread], kernel_threads: list[Thread]) -> list[Thread]:
    """Return Python's threads with what the kernel says about each of them."""
    views = {thread.id: thread for thread in kernel_threads}
    pairs = [(thread, views.get(thread.id, thread)) for thread in threads]
    return [replace(thread, wchan=view.wchan, call=view.call) for thread, view in pairs]


def _needs_native(stack: Stack) -> bool:
    """Return whether Python's frames leave open what the main thread does: it spins or sleeps in native code."""
    if stack.how != "py-spy" or stack.process.state in "TtD" or not stack.threads:
        return False
    main = stack.threads[0]
    if not main.frames or (main.active and not main.gil):
        return True
    return main.wchan.startswith(DARK) and not WAITS_IN_PYTHON.search(main.frames[0].file)


def _native(stack: Stack, end: float) -> Stack:
    """Return a stack with its native frames, or as it was where they cannot be read in time."""
    natives, _ = pyspy.dump(stack.process, end, native=True)
    if not natives:
        return stack
    with_locals = {(f.function, f.file, f.line): f for thread in stack.threads for f in thread.frames if f.locals}
    for thread in natives:
        thread.frames[:] = [with_locals.get((f.function, f.file, f.line), f) for f in thread.frames]
    return replace(stack, threads=_merged(natives, stack.threads))
