"""Hangs that no library's frames explain: locks, endless loops, full pipes, threads and processes in a ring.

A lock that a thread has taken itself is read from the source of its frames: `with lock:` around a call that reaches
`with lock:` again, `lock.acquire()` after another one of the same function, and `lock.acquire()` in a file that never
releases the lock. A lock is identified by how it is written. As the thread waits, the lock cannot be reentrant.

Processes wait in a ring if everybody who could wake one of them is in it too. Their system calls name who that is: the
other end of a pipe, the holder of a lock, the child waited for.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ocrlab import safe_read
from ocrlab.debug.diagnosis.catalogue import Level
from ocrlab.debug.diagnosis.hangs import stack_patterns
from ocrlab.debug.diagnosis.hangs.stack_patterns import HangFinding, finding, where
from ocrlab.hardware.processes.stack_dumps import short
from ocrlab.hardware.processes.stack_types import Frame, Stack, Thread

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
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
MESSAGES = ("multiprocessing/connection.py", "selectors.py")
EVENT_LOOP = re.compile(r"(^|/)(asyncio/base_events|trio/_core/_run)\.py$")
ON_A_FILE = re.compile(r"^(?:flock|fcntl) \d+ (.+?)(?:, held by (.+))?$")
OPENMP = re.compile(
    r"gomp|omp_|kmp|libomp|libiomp|mkl|openblas|at::parallel|cv::|libopencv|OpenCL|pthread_mutex|pool", re.I
)
LOCKS = re.compile(r"PyThread_acquire_lock|lock_PyThread|_thread_lock|rlock_acquire|lock_acquire|PySemaphore|sem_wait")
LOGGING = ("logging/__init__.py", "threading.py")
SHARED = "multiprocessing/synchronize.py"  # these locks are meant for several processes: fork copies none of them
NAMED = re.compile(r"^(read|write|flock|fcntl) .*, (?:written|read|held) by (\d+(?:, \d+)*)$")
CHILD = re.compile(r"^wait4(?: (\d+))?$")
MOST = 4  # processes that are named
FILE_LOCK = "for the lock on a file, held by {},"
RING = {  # what a process of a ring waits for, by its system call
    "read": "for data from {} in a pipe",
    "write": "for {} to read from a full pipe",
    "wait4": "for the end of {}",
    "flock": FILE_LOCK,
    "fcntl": FILE_LOCK,
    "futex": "for a lock that processes share",
}
WAITS = {  # methods that wait, and those of the same object that end the wait
    "wait": ("set", "notify", "notify_all", "wait"),
    "get": ("put", "put_nowait"),
    "put": ("get", "get_nowait"),
    "acquire": ("release",),
    "join": ("task_done",),
    "recv": (),
    "accept": (),
}


def explain_self_deadlock(frames: Sequence[Frame]) -> str:
    """Return in words where a thread has taken the lock that it waits for; '' where its source does not tell."""
    own = stack_patterns.own([frame for frame in frames if frame.line])
    if own is None or (tree := _parsed(own.file)) is None:
        return ""
    function = _around(tree, own.line)
    taken = [*_taken(function)]
    callers = stack_patterns.since_copied(frames)[frames.index(own) + 1 :]
    outer = [frame for frame in callers if not stack_patterns.is_library(frame)]
    for name, at in reversed(taken):
        if not at.lineno <= own.line <= (at.lineno if isinstance(at, ast.With) else _end(at)):
            continue
        before = [earlier for other, earlier in taken if other == name and _place(earlier) < _place(at)]
        if any(_holds(tree, function, name, earlier, at, _place(at)) for earlier in before):
            return f"it already holds {name}, taken a few lines above or in the same line"
        for frame in outer:
            if name in _locks_taken_in(frame):
                return f"it already holds {name}, taken in {stack_patterns.place(frame)}"
        elsewhere = len(_of(tree, "acquire", name)) > len(_of(function, "acquire", name))  # by a parent, it may be
        if isinstance(at, ast.Call) and not elsewhere and not _of(tree, "release", name):
            return f"nothing in {short(own.file)} releases {name} once it is taken"
    return ""


def explain_own_wait(frames: Sequence[Frame]) -> str:
    """Say that a thread waits for an object that its own call has created; '' where the source does not show one.

    Such an object is not a lock that a fork has copied.
    """
    own = stack_patterns.own([frame for frame in frames if frame.line])
    if own is None or (tree := _parsed(own.file)) is None:
        return ""
    around = [node for node in ast.walk(tree) if isinstance(node, FUNCTIONS) and node.lineno <= own.line <= _end(node)]
    for call in ast.walk(tree) if around else ():
        waits = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and _spans(call, own)
        if not waits or call.func.attr not in (*WAITS, "result"):  # type: ignore[attr-defined]
            continue
        method, receiver = call.func.attr, call.func.value  # type: ignore[attr-defined]
        name, ends = ast.unparse(receiver), WAITS.get(method, ())
        nodes = (node for function in around for node in _inside(function) if isinstance(node, ast.Assign))
        lines = (
            [receiver.lineno]
            if isinstance(receiver, ast.Call)
            else sorted(node.lineno for node in nodes if _makes(node, name))
        )
        lines = [line for line in lines if line <= own.line]
        if lines:
            others = [other for end in ends for other in _of(tree, end, name) if other is not call]
            alone = f", and no line of {short(own.file)} ends the wait" if ends and not others else ""
            return f"the same call has made `{name}` (line {lines[-1]}){alone}"
    return ""


def _makes(node: ast.Assign, name: str) -> bool:
    """Return whether a statement gives the result of a call to a name."""
    targets = [part for target in node.targets for part in getattr(target, "elts", [target])]
    is_target = any(isinstance(target, ast.Name) and target.id == name for target in targets)
    return is_target and isinstance(node.value, ast.Call)


def _parsed(file: str) -> ast.Module | None:
    with contextlib.suppress(OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.parse(safe_read.read(Path(file), stack_patterns.LARGEST))
    return None


def _around(tree: ast.Module, line: int) -> ast.AST:
    """Return the innermost function that a line is in, else the whole file."""
    functions = [node for node in ast.walk(tree) if isinstance(node, FUNCTIONS) and node.lineno <= line <= _end(node)]
    return max(functions, key=lambda node: node.lineno, default=tree)


def _taken(function: ast.AST) -> Iterator[tuple[str, ast.With | ast.Call]]:
    """Yield each lock that a function takes, as it is written, and the statement or the call that does."""
    for node in _inside(function):
        if isinstance(node, ast.With):
            for item in node.items:
                if isinstance(item.context_expr, ast.Name | ast.Attribute | ast.Subscript):
                    yield ast.unparse(item.context_expr), node
        elif isinstance(node, ast.Call) and _receiver(node, "acquire") and not node.args and not node.keywords:
            yield _receiver(node, "acquire"), node


def _inside(function: ast.AST) -> Iterator[ast.AST]:
    """Yield what is in a function, and not in one that is defined there."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, FUNCTIONS | ast.ClassDef):
            yield from _inside(child)


def _locks_taken_in(frame: Frame) -> list[str]:
    """Return the locks that a frame further out has taken when it called."""
    tree = _parsed(frame.file) or ast.Module([], [])
    function, here = _around(tree, frame.line), ast.Pass(lineno=frame.line, col_offset=1 << 30)
    return [name for name, at in _taken(function) if _holds(tree, function, name, at, here, (frame.line, 0))]


def _holds(
    tree: ast.Module, function: ast.AST, name: str, taken: ast.With | ast.Call, at: ast.AST, until: tuple[int, int]
) -> bool:
    """Return whether a lock that was taken is not released at another place: in its `with`, or later in its block."""
    if any(_place(taken) <= _place(call) <= until for call in _of(tree, "release", name)):
        return False
    if isinstance(taken, ast.With):
        return any(_spans(statement, at) for statement in taken.body)
    for node in (function, *_inside(function)):
        for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            for i, statement in enumerate(block if isinstance(block, list) else ()):
                if isinstance(statement, ast.Expr) and statement.value is taken:
                    return any(_spans(other, at) for other in block[i:])  # type: ignore[index]
    return False


def _spans(node: ast.AST, at: ast.AST | Frame) -> bool:
    line = at.line if isinstance(at, Frame) else at.lineno  # type: ignore[attr-defined]
    return bool(node.lineno <= line <= _end(node))  # type: ignore[attr-defined]


def _of(tree: ast.AST, method: str, name: str) -> list[ast.Call]:
    """Return the calls of a method of whatever is called as a lock is at its end: `self.lock`, `other.lock`."""
    last = name.rpartition(".")[2]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in calls if _receiver(call, method).rpartition(".")[2] == last]


def _receiver(call: ast.Call, method: str) -> str:
    """Return the object whose method is called, as it is written; '' for any other call."""
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr == method
    return ast.unparse(call.func.value) if is_method else ""  # type: ignore[attr-defined]


def _place(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def _end(node: ast.AST) -> int:
    return int(getattr(node, "end_lineno", None) or node.lineno)  # type: ignore[attr-defined]


def fork_lock(stack: Stack, parent: Stack | None) -> HangFinding | None:
    """Return a finding if a forked child waits for a lock or a thread pool that only its parent had."""
    if not stack.threads or not stack_patterns.forked(stack):
        return None
    thread = stack.threads[0]
    python = stack_patterns.python(thread.frames)
    if python and (python[0].file.endswith(SHARED) or stack_patterns.joins(python)):
        return None  # several processes have that lock; a thread that is joined lives in this copy
    if explain_self_deadlock(thread.frames) or explain_own_wait(thread.frames):
        return None
    native = thread.frames[: thread.frames.index(python[0])] if python else thread.frames
    words = " ".join(f"{frame.function} {frame.file}" for frame in native)
    if OPENMP.search(words):
        level, what = Level.DECISIVE, "waits in a native thread pool or lock"
    elif thread.active and not thread.gil:
        level, what = Level.LIKELY, "spins in native code without Python's lock, as an OpenMP pool copied by fork does"
    elif stack.process.threads == 1 and thread.call == "futex private":
        level, what = Level.STRONG, "waits for a lock that nobody can release"
    elif any(stack_patterns.own(other.frames) for other in stack_patterns.busy(stack)[1:]):
        return None  # another thread of the copy may hold the lock
    elif LOCKS.search(words) or (python and python[0].file.endswith(LOGGING)):
        level, what = Level.STRONG, "waits for a Python lock that no thread of this copy can hold"
    elif _futex(thread):
        level, what = Level.POSSIBLE, "sleeps on a lock in native code"
    else:
        return None
    if parent is not None and parent.process.threads > 1 >= stack.process.threads:
        level = level.shifted(1)
        what += f"; it has one thread, its parent has {parent.process.threads}"
    why = f"{stack_patterns.process_name(stack)}, a copy made by fork, {what}, in {where(thread.frames)}"
    return finding(stack, level, why, cause="loader.fork_deadlock")


def explain_wait(
    stack: Stack, stacks: Sequence[Stack], before: Mapping[int, Stack], seconds: float | None = None, log: str = ""
) -> list[HangFinding]:
    """Return what the main thread of a process waits for, or loops in, when no frame of a library tells.

    `seconds` is for how long nothing has moved, where that is known; `log` is what the program has printed.
    """
    parent = next((other for other in stacks if other.process.pid == stack.process.parent), None)
    if locked := fork_lock(stack, parent):
        return [locked]
    main, old = stack.threads[0], before.get(stack.process.pid)
    frames, at = main.frames, where(main.frames)
    if main.active or main.gil:
        return [_loop(stack, old, seconds)]
    for child in stacks:
        writes = child.threads and child.threads[0].wchan.endswith("pipe_write")
        if writes and child.process.parent == stack.process.pid:
            why = f"process {stack.process.pid} waits for {child.process.pid}, which waits to write into a full pipe"
            return [finding(stack, Level.STRONG, why)]
    joins = (JOINS.match(f.function.rpartition(".")[2]) for f in frames if WAITS_FOR_A_CHILD.search(f.file))
    if main.call.startswith("wait") or any(joins):
        return []  # what the child does is the answer, and it is judged by itself
    others = [
        thread
        for thread in stack_patterns.busy(stack)[1:]
        if stack_patterns.own(thread.frames) or stack_patterns.match_pattern(thread.frames)[0]
    ]
    inner = next(iter(stack_patterns.python(frames)), None)
    if elsewhere := _another_thread(stack, others, old):
        return [elsewhere]
    if _sleeps_on_a_lock(main, inner.file if inner else ""):
        return [_lock(stack, stacks, others, log)]
    if inner and inner.file.endswith(MESSAGES):
        return [_message(stack, stacks, bool(others))]
    if address := stack_patterns.far_end(main):
        fetches = any(FETCHES.search(short(frame.file)) for frame in frames)
        why = f"it waits in {at} for {address} to answer, without a time limit"
        cause, level = ("io.download", Level.STRONG) if fetches else ("hang.deadlock", Level.LIKELY)
        return [finding(stack, level, why, cause=cause)]
    if inner and not stack_patterns.is_library(inner):
        does = "sleeps, wakes and sleeps again in" if "nanosleep" in main.call + main.wchan else "does not leave"
        return [finding(stack, Level.POSSIBLE, f"the main thread {does} {at}")]
    if inner and stack_patterns.own(frames) and main.call:
        why = f"the main thread does not come back from {stack_patterns.place(inner)}, called in {at}"
        return [finding(stack, Level.POSSIBLE, why)]
    return []


def _message(stack: Stack, stacks: Sequence[Stack], works: bool) -> HangFinding:
    """Return what a process waits to hear of: its own tasks, a pipe that nobody can write into any more, another one.

    `works` is whether another thread of it does something of its own, as one that feeds a queue.
    """
    main, at = stack.threads[0], where(stack.threads[0].frames)
    files = [short(frame.file) for frame in main.frames]
    if any(map(EVENT_LOOP.search, files)):
        return finding(
            stack, Level.POSSIBLE, f"the event loop that runs in {at} waits, and none of its tasks continues"
        )
    if main.call.endswith(", written by nobody else") and not works:
        children = [child.process for child in stacks if child.process.parent == stack.process.pid]
        ended = [str(process.pid) for process in children if process.state == "Z"]
        why = f"it waits in {at} for a message, and no process is left that could send one"
        why += f": of its processes {', '.join(ended[:4])} ended" if ended else ""
        return finding(stack, Level.DECISIVE, why)
    whose = "a message of another process that does not come"
    if not any(file.endswith(MESSAGES[0]) for file in files):
        whose = "a socket or a pipe that does not become ready"
    return finding(stack, Level.POSSIBLE, f"it waits in {at} for {whose}")


def _lock(stack: Stack, stacks: Sequence[Stack], others: list[Thread], log: str) -> HangFinding:
    """Return what the lock is that the main thread sleeps on: who should have released it, as far as that shows."""
    main = stack.threads[0]
    frames, at = main.frames, where(main.frames)
    living = [thread for thread in stack.threads[1:] if stack_patterns.own(thread.frames)]
    if frames and living and ENDS.search(f"{short(frames[0].file)} {frames[0].function}"):
        why = f"the program is at its end, and Python waits for thread {_named(living)}, which is not a daemon"
        return finding(stack, Level.STRONG, why, living[0].frames[:4] + frames[:2])
    if twice := explain_self_deadlock(frames):
        return finding(stack, Level.DECISIVE, f"the main thread waits for a lock in {at}, and {twice}")
    blocked = [thread for thread in others if _sleeps_on_a_lock(thread, thread.frames[0].file)]
    if blocked:
        why = f"the main thread waits for a lock or a thread in {at}, and so does {_named(blocked)}"
        return finding(stack, Level.STRONG, why, frames[:4] + blocked[0].frames[:4])
    if _lost_by_a_pool(stack, stacks):
        why = f"a worker of the pool has died with its task: the main thread waits for it in {at}, and all its workers "
        return finding(stack, Level.STRONG, f"{why}wait for work")
    if dead := DEAD.search(log):
        why = f"the main thread waits in {at}, and thread {dead[1]} has died: {dead[2][:120]}"
        return finding(stack, Level.STRONG, why)
    file = ON_A_FILE.match(main.call)
    holder = f", held by process {file[2]}" if file and file[2] else ""
    what = f"a lock on the file {file[1]}" if file else "a lock"
    level = Level.STRONG if holder else Level.LIKELY
    return finding(stack, level, f"the main thread waits for {what} in {at}{holder}")


def _lost_by_a_pool(stack: Stack, stacks: Sequence[Stack]) -> bool:
    """Return whether a process waits for a result of multiprocessing.Pool while all workers of the pool are idle."""
    inside = any(POOL.search(f"{short(frame.file)} {frame.function}") for frame in stack.threads[0].frames)
    children = [
        child.threads[0].frames for child in stacks if child.process.parent == stack.process.pid and child.threads
    ]
    workers = [frames for frames in children if any(POOLED.search(frame.file) for frame in frames)]
    return inside and bool(workers) and all(map(stack_patterns.idle, workers))


def _named(threads: list[Thread]) -> str:
    return ", ".join(f"{thread.name or thread.id} in {where(thread.frames)}" for thread in threads)


def _loop(stack: Stack, old: Stack | None, seconds: float | None) -> HangFinding:
    """Return where the main thread uses the CPU: a suspicion at most, for a long computation looks the same."""
    main = stack.threads[0]
    has_gpu = any("libcuda" in frame.file for frame in main.frames if not frame.line)
    has_gpu |= any("/dev/nvidia" in thread.call for thread in stack.threads)
    if has_gpu and not main.gil and stack_patterns.synchronises(stack_patterns.own(main.frames)):
        why = f"it waits for the GPU in {where(main.frames)}"
        return finding(stack, Level.LIKELY, why, cause="hang.gpu_kernel")
    if main.gil and not main.active:
        level = Level.POSSIBLE if stack_patterns.moved(main, old) else Level.LIKELY
        return finding(stack, level, f"the main thread sleeps while it holds Python's lock in {where(main.frames)}")
    native = "" if main.gil else ", in native code called there"
    why = _busy(stack_patterns.best(main.frames), seconds) + native + _same(main, old)
    return finding(stack, Level.POSSIBLE, why)  # effects on objects and files are invisible


def _same(thread: Thread, old: Stack | None) -> str:
    if thread.gil and stack_patterns.still(thread, old):
        return ": no variable changes in that loop"
    return "; it may be at work, or in a loop without end"


def _busy(frame: Frame | None, seconds: float | None) -> str:
    """Return where a thread uses the CPU: `busy at train.py:12 for 30 s, in fit`."""
    span = f" for {seconds:.0f} s" if seconds else ""
    if frame is None or not frame.line:
        return f"busy in native code{span}"
    return f"busy at {short(frame.file)}:{frame.line}{span}, in {frame.function}"


def _another_thread(stack: Stack, others: list[Thread], old: Stack | None) -> HangFinding | None:
    """Return why the thread that the main thread waits for does not come back."""
    for thread in others:
        if stack_patterns.QUEUES.search(thread.frames[0].file):
            continue  # a tracker's own threads, for one, wait for work all the time
        kind, index = stack_patterns.match_pattern(thread.frames)
        if kind.startswith("hang."):
            why = f"thread {thread.name or thread.id} is in {stack_patterns.place(thread.frames[index])}"
            return finding(stack, Level.LIKELY, why, thread.frames[:6], cause=kind)
    for thread in others:
        if thread.active or thread.gil:
            why = f"{_busy(stack_patterns.best(thread.frames), None)}, in thread {thread.name or thread.id}"
            why += f"; the main thread waits for it{_same(thread, old)}"
            return finding(stack, Level.POSSIBLE, why, thread.frames[:6])
    return None


def _sleeps_on_a_lock(thread: Thread, file: str) -> bool:
    return _futex(thread) or file.endswith(WAITS_IN_PYTHON) or thread.call.startswith(("flock", "fcntl"))


def _futex(thread: Thread) -> bool:
    return thread.wchan.startswith("futex") or thread.call.startswith("futex")


def find_wait_cycle(stacks: Sequence[Stack], before: Mapping[int, Stack]) -> list[HangFinding]:
    """Return the ring that processes wait in, if there is one; parents come first in `stacks`."""
    by_pid = {stack.process.pid: stack for stack in stacks if stack.threads and stack.process.state not in "ZX"}
    ring = {
        pid: wakers
        for pid, stack in by_pid.items()
        if (wakers := _wakers(stack, by_pid)) and not stack_patterns.moved(stack.threads[0], before.get(pid))
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
    why = (
        "; ".join(_describe(stack, ring[stack.process.pid]) for stack in links)
        + ": no thread is left that could wake them"
    )
    frames = [frame for stack in links for frame in _waiting(stack).frames[:4]]
    return [finding(links[0], Level.DECISIVE, why, frames[:8])]


def _wakers(stack: Stack, by_pid: Mapping[int, Stack]) -> set[int] | None:
    """Return the only processes that could wake a process; None where that is not known, or one of its threads works.

    What a main thread that waits for another thread of its own waits for is what that one waits for.
    """
    pid, thread = stack.process.pid, _waiting(stack)
    others = [other for other in stack_patterns.busy(stack)[1:] if other is not thread]
    if thread.active or thread.gil or any(stack_patterns.own(other.frames) for other in others):
        return None
    call = thread.call
    children = {child: other for child, other in by_pid.items() if other.process.parent == pid}
    if match := NAMED.match(call):
        return set(map(int, match[2].split(", "))) - {pid}
    if match := CHILD.match(call):
        return {int(match[1])} if match[1] else set(children)
    if call == "futex shared" and stack.how == "py-spy":
        return {child for child, other in by_pid.items() if child != pid and other.how == "py-spy"}
    if stack_patterns.match_pattern(thread.frames)[0] == "loader.wait":
        workers = {child: other for child, other in children.items() if stack_patterns.is_worker(other)}
        return {child for child, other in workers.items() if not stack_patterns.idle(other.threads[0].frames)}
    return None


def _waiting(stack: Stack) -> Thread:
    """Return the thread that tells what a process waits for: the one that is joined where it is the only one."""
    main = stack.threads[0]
    others = [thread for thread in stack.threads[1:] if thread.frames]
    return others[0] if stack_patterns.joins(stack_patterns.python(main.frames)) and len(others) == 1 else main


def _describe(stack: Stack, wakers: set[int]) -> str:
    """Return what a process waits for, in words."""
    thread = _waiting(stack)
    whom = ", ".join(map(str, sorted(wakers)))
    own = stack_patterns.own(thread.frames)
    at = stack_patterns.place(own) if own else thread.name or stack.process.name
    what = RING.get(thread.call.partition(" ")[0], "for its workers {}").format(whom)
    return f"{stack_patterns.process_name(stack)} waits {what} in {at}"
