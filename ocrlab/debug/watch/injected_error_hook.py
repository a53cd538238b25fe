"""What a watched Python reports of its errors, also of those that a handler hides: our only file inside of it.

`ocrlab watch` copies it to a folder on PYTHONPATH, where each Python of the program runs it before anything else. It
knows nothing of ocrlab, keeps no exception alive, prints nothing and raises nothing. It writes down, by process:

    uncaught   what ended it, with everything that it came from, also after `raise ... from None` (at exit)
    exit       sys.exit() inside of a handler, with what was being handled
    handled    an error that a handler of the program's own code took, the first of each kind (from Python 3.12 on)
    times      how often that was at least, at each power of ten and at exit
    children   with which exit codes its multiprocessing children ended (at exit)
    failed     what this file itself failed at, for ocrlab-errors.log of the run

From Python 3.12 on it hears all that from sys.monitoring and changes nothing; an older Python gets another sys.exit. A
program that handles more than MANY errors within BUSY seconds is left alone until it calls something that it has not
called since, so that it loses little time.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from types import CodeType, TracebackType
    from typing import Any, NoReturn

FOLDER = os.environ.get("OCRLAB_WATCH", "")
ENDING = "-errors.txt"  # of the files, one for each process
FAILURES = 5  # of our own code that are written down
VALUES, DESCRIBED = "_ocrlab_values.py", 20  # failing_values.py, and exceptions of a process that it describes
MOST, LONGEST, LINKS = 200, 2000, 8  # errors of a process, characters of a message, errors that came one from another
OUTER, INNER = 12, 28  # frames of a traceback
FOREIGN = ("/site-packages/", "/dist-packages/", "/lib/python", "/lib64/python", "<")
WORKER_LOOP = "torch/utils/data/_utils/worker.py"  # takes every error of a sample, to send it to the main process
PLAIN = (str, int, float, bool, bytes, type(None), tuple)
FLOW = ("StopIteration", "StopAsyncIteration", "GeneratorExit", "KeyboardInterrupt", "SystemExit", "CancelledError")
TOOL, TOOLS = "ocrlab", (4, 3)  # numbers that sys.monitoring leaves to anybody
MANY, BUSY, PAUSE = 1000, 0.02, 0.05  # errors, seconds: each costs about a microsecond

monitoring: Any = getattr(sys, "monitoring", None)  # from Python 3.12 on
leave = sys.exit
own_files: dict[str, bool] = {}  # whether a file is the program's own
times: dict[tuple[str, int, str], int] = {}  # how often a handler began, by its file, its place, and what it handles
reported: set[tuple[str, int, str]] = set()  # by file and line of what failed
problems: list[str] = []  # where our own code failed
described: list[Any] = [0, {"__name__": "_ocrlab_values"}]  # exceptions, and the code that reads values
rate = [0, 0.0]  # errors since the second, which is a time of the monotonic clock


def write(kind: str, **values: Any) -> None:
    """Add a line to the file of this process."""
    pid = os.getpid()
    line = repr({"kind": kind, "pid": pid, "time": time.time(), **values}) + "\n"
    descriptor = os.open(os.path.join(FOLDER, f"{pid}{ENDING}"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode("utf-8", "backslashreplace"))
    finally:
        os.close(descriptor)


def chain(error: BaseException) -> list[dict[str, Any]]:
    """Return an error and what it came from, the last one first."""
    links: list[dict[str, Any]] = []
    ids: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in ids and len(links) < LINKS:
        ids.add(id(link))
        kind, cause, context = type(link), link.__cause__, link.__context__
        module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
        hidden = link.__suppress_context__ and context is not None
        by = "cause" if cause is not None else "hidden" if hidden else "context"
        kinds = [base.__name__ for base in kind.__mro__[:-1]]
        links.append({"type": f"{module}{kind.__qualname__}", "kinds": kinds, "says": says(link), "by": by})
        links[-1]["frames"] = frames(link.__traceback__)
        link = cause if cause is not None else context
    return links


def says(error: BaseException) -> str:
    """Return the message of an error; one that holds more than words and numbers is not asked for it."""
    if not all(isinstance(value, PLAIN) for value in error.args):
        return f"({', '.join(type(value).__name__ for value in error.args)})"
    try:
        return str(error)[:LONGEST]
    except Exception:
        return ""


def frames(trace: TracebackType | None) -> list[tuple[str, int, str]]:
    """Return file, line and function of each frame, outermost first."""
    frames = []
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append((code.co_filename, trace.tb_lineno or 0, code.co_name))
        trace = trace.tb_next
    return frames if len(frames) <= OUTER + INNER else frames[:OUTER] + frames[-INNER:]


def own(file: str) -> bool:
    """Return whether a file is neither Python's nor an installed package's."""
    return not file.startswith(FOLDER) and not any(part in file for part in FOREIGN)


def on_handled(code: CodeType, offset: int, error: BaseException) -> None:
    """Note an error that a handler begins to handle; called by Python, also for `finally` and `with`."""
    rate[0] += 1
    if rate[0] >= MANY:
        slow_down()
    file = code.co_filename
    ours = own_files.get(file)
    if ours is None:
        ours = own_files[file] = own(file) or file.endswith(WORKER_LOOP)
    if not ours:
        return
    try:
        name = type(error).__name__
        key = (file, offset, name)
        count = times[key] = times.get(key, 0) + 1
        if count == 1 and len(reported) < MOST and name not in FLOW:
            trace = error.__traceback__
            at = (file, trace.tb_lineno if trace else 0, name)
            if at not in reported:  # its handler's own clean-up is handled once more
                reported.add(at)
                write("handled", key=key, chain=chain(error), values=values_of(error))
        elif count in (10, 100, 1000, 10000, 100000):
            write("times", key=key, count=count)
    except Exception as problem:
        failed("on_handled", problem)


def values_of(error: BaseException) -> list[Any]:
    """Return the values that the failing lines of an exception used; of a few exceptions of a process.

    Not of a KeyboardInterrupt: an import that evaluates a text (of linecache, say) would change the exit status.
    """
    described[0] += 1
    if described[0] > DESCRIBED or not isinstance(error, Exception):
        return []
    try:
        namespace = described[1]
        if "collect" not in namespace:
            file = os.path.join(os.path.dirname(os.path.abspath(__file__)), VALUES)
            with open(file, encoding="utf-8") as source:
                exec(compile(source.read(), file, "exec"), namespace)
        result: list[Any] = namespace["collect"](error, own)
        return result
    except Exception as problem:
        failed("values_of", problem)
        return []


def failed(where: str, problem: Exception) -> None:
    """Write down, a few times, what our own code failed at; it never reaches the program."""
    problems.append(where)
    if len(problems) > FAILURES:
        return
    try:
        import traceback

        write("failed", where=where, says="".join(traceback.format_exception(problem)))
    except Exception:
        return


def slow_down() -> None:
    """Stop listening for a while where errors come so fast that to count them would take the program's time."""
    now = time.monotonic()
    if now - rate[1] < BUSY:
        listen(monitoring.events.CALL)
    rate[:] = [0, now]


def on_call(code: CodeType, offset: int, function: object, first: object) -> object:
    """Listen again when something is called that was not called in this pause, and where the program leaves.

    Called once for each place.
    """
    leaves_now = function is sys.exit or function is SystemExit
    if not leaves_now and time.monotonic() - rate[1] < PAUSE:
        return monitoring.DISABLE
    rate[:] = [0, time.monotonic()]
    listen(monitoring.events.EXCEPTION_HANDLED | monitoring.events.RAISE)
    return None


def on_raise(code: CodeType, offset: int, error: BaseException) -> None:
    """Note what is being handled where the program leaves; called by Python in each frame that an error passes."""
    if type(error) is not SystemExit:
        return
    trace = error.__traceback__
    if trace is None or trace.tb_next is None:
        note_exit(error.code, sys.exc_info()[1])


def note_exit(status: object, cause: BaseException | None) -> None:
    """Note what is being handled where the program leaves."""
    try:
        if cause is not None:
            number = status if isinstance(status, int | str) else None
            write("exit", status=number, chain=chain(cause), values=values_of(cause))
    except Exception as problem:
        failed("note_exit", problem)


def listen(events: int) -> None:
    """Ask Python for some events, and no others."""
    tool = next(number for number in TOOLS if monitoring.get_tool(number) == TOOL)
    monitoring.set_events(tool, events)


def at_exit() -> None:
    """Write down what ended this process; runs last of all that is registered."""
    try:
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if isinstance(error, BaseException):
            write("uncaught", chain=chain(error), hears=hasattr(sys, "monitoring"), values=values_of(error))
        for key, count in list(times.items()):
            if count > 1 and key[2] not in FLOW:
                write("times", key=key, count=count)
        processes = getattr(sys.modules.get("multiprocessing.process"), "_dangling", ())
        started: list[Any] = [getattr(process, "_popen", None) for process in list(processes)]
        ended = [(process.pid, process.returncode) for process in started if getattr(process, "returncode", None)]
        if ended:
            write("children", ended=ended)
    except Exception as problem:
        failed("at_exit", problem)


def leaves(status: object = None, /) -> NoReturn:
    """Exit the interpreter, as sys.exit does before Python 3.12; what is being handled is written down first."""
    note_exit(status, sys.exc_info()[1])
    leave(status)  # type: ignore[arg-type]


def forget() -> None:
    """Begin anew in a forked child."""
    times.clear()
    reported.clear()
    described[0] = 0
    rate[:] = [0, 0.0]


def begin() -> None:
    """Listen from now on."""
    if not os.path.isdir(FOLDER):
        return
    atexit.register(at_exit)
    os.register_at_fork(after_in_child=forget)
    if monitoring is None:
        leaves.__module__, leaves.__name__, leaves.__qualname__ = "sys", "exit", "exit"  # pickled by that name
        leaves.__doc__ = sys.exit.__doc__
        sys.exit = leaves
        return
    events = monitoring.events
    tool = next((number for number in TOOLS if monitoring.get_tool(number) is None), None)
    if tool is not None:
        monitoring.use_tool_id(tool, TOOL)
        monitoring.register_callback(tool, events.EXCEPTION_HANDLED, on_handled)
        monitoring.register_callback(tool, events.RAISE, on_raise)
        monitoring.register_callback(tool, events.CALL, on_call)
        listen(events.EXCEPTION_HANDLED | events.RAISE)


begin()
