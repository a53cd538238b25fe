"""Where it happened: the module of the network, the operator, and the frame in the program's own code.

Torch's own `Module._call_impl` follows a frame whose expression calls a module, so that the calls of a traceback spell
the module's name: `self.bert(`, `self.embeddings(`, `self.word_embeddings(`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePath

from ocrlab.debug.diagnosis.hangs import stack_patterns
from ocrlab.debug.diagnosis.log_records import LoggedException, LoggedFrame, LoggedThread, read_frame
from ocrlab.debug.diagnosis.log_text import LogText
from ocrlab.records import Cause, Evidence

CALLING = re.compile(r"(?:_wrapped_call_impl|_call_impl|__call__|_slow_forward)\Z")  # functions of Module
# Frames of the recorder stand between two of them where a training is recorded.
RECORDER = re.compile(r"ocrlab[/\\]debug[/\\]recorder[/\\](?:\w+[/\\])*\w+\.py\Z")
MODULE = re.compile(r"torch[/\\]nn[/\\]modules[/\\]module\.py\Z")
CALLEE = re.compile(r"([A-Za-z_]\w*(?:\.\w+|\[\w+\])*)\(")
OPERATOR = re.compile(r"\b(?:torch|F|functional|_VF)(?:\.\w+)*\.(\w+)\(")
CONTAINER = re.compile(r"torch[/\\]nn[/\\]modules[/\\]container\.py\Z")  # Sequential: which member, no traceback says
TORCH = re.compile(r"[/\\]torch[/\\](?!nn[/\\])")  # as checkpoint, which calls whatever it was given
LATE = re.compile(
    r"(?:CUDA|HIP|XPU) error|CU(?:BLAS|SOLVER|SPARSE|FFT)_STATUS|cuDNN error|CUDNN_STATUS|device-side assert"
)
SURFACED = " (where it surfaced)"
MODULE_TEXT = re.compile(rf"^module [\w.*?]+(?:, operator \w+)?(?:{re.escape(SURFACED)})?\Z")
WRAPPERS = {"module", "_orig_mod", "_forward_module", "_fsdp_wrapped_module"}  # DataParallel, compile, Lightning, FSDP
NO_OPERATORS = {"checkpoint", "compile", "no_grad", "autocast", "tensor", "load", "save", "manual_seed"}
RELAYED = re.compile(r"Caught \w+ in \w[\w ]{0,40}\d")  # torch/_utils.py quotes the exception of another process
ANONYMOUS = re.compile(r"<(?!module)\w+>")
HANDLER = "_utils/signal_handling.py"  # torch raises there for a dead worker, wherever the main process is just then
ABORTED = "Fatal Python error: Aborted"
LAST_WORDS = re.compile(r"^\s*what\(\): +\S|^terminate called|: Assertion `")  # of the C library before it aborts
CHAINED = 4  # lines from a traceback to the one that it was the cause of
MOST = 4  # lines of evidence


def failing_module(exception: LoggedException) -> tuple[int, str] | None:
    """Return the line of a traceback that names its operator, and in words the module and the operator.

    None where no frame calls a module. What a device reports surfaces later than it happened, at whatever asks next.
    """
    frames = [frame for frame in exception.frames if not frame.listed and not RECORDER.search(frame.file)]
    names: list[str] = []
    local, inside = "", False  # the network's variable; whether a frame is that of a module's forward
    for frame, into in pairwise(frames):
        if _calls_module(frame):
            inside = True
            continue
        inside, is_forward = False, inside
        if not _calls_module(into):
            continue
        name = "*" if CONTAINER.search(frame.file) else "self.?" if TORCH.search(frame.file) else _callee(frame.code)
        if is_forward and name and not name.startswith("self.") and name != "self":
            name = "*"  # a variable of its forward, as of a loop over its layers
        if name.startswith("self.") or names:
            names += [part for part in (name or "?").removeprefix("self.").split(".") if part not in WRAPPERS]
        elif name == "*" and local:
            local += ".*"  # of which network the member is, is known at least
        elif name and name != "self":
            local = name  # the whole network: its own name is not a part of its modules' names
    if not frames:
        return None
    last = frames[-1]
    operators = OPERATOR.findall(last.code)
    operator = operators[0] if len(operators) == 1 and operators[0] not in NO_OPERATORS else ""
    if len(names) > 1 and set(names) == {"?"}:  # in a compiled graph, say: not one name is known
        names = ["?"] if operator else []
    if not names and not local:
        return None
    where = f"module {'.'.join(names) or local}"
    where += f", operator {operator}" if operator else ""
    return last.source_number or last.number, where + SURFACED * bool(LATE.search(exception.text))


def _calls_module(frame: LoggedFrame) -> bool:
    """Return whether a frame is torch's way into a module's forward."""
    return bool(MODULE.search(frame.file) and CALLING.match(frame.function))


def module_text(text: str) -> str:
    """Return a line of evidence if ocrlab wrote it, else nothing."""
    return text if MODULE_TEXT.match(text) else ""


def _callee(code: str) -> str:
    """Return the name of the module that an expression calls; `self.?` where several could be meant.

    Outer calls come first: of `self.relu(self.conv(x))` without marks nobody knows which one is at work.
    """
    callees = [name for name in CALLEE.findall(code) if name.startswith("self.") or "." not in name]
    mine = [name for name in callees if name.startswith("self.")] or callees
    if len(mine) != 1 and not (mine and code.startswith(f"{mine[0]}(") and code.endswith(")")):
        return "self.?" if mine and mine[0].startswith("self.") else ""
    return re.sub(r"\[(\w+)\]", lambda index: f".{index[1] if index[1].isdigit() else '*'}", mine[0])


Trace = LoggedException | LoggedThread


def _traces(page: LogText) -> list[Trace]:
    """Return the tracebacks and the stacks of threads of a log, in its order."""
    traced = [exception for exception in page.records.exceptions if exception.traced]
    return sorted([*traced, *page.records.threads], key=lambda trace: trace.first)


def _own_frames(trace: Trace) -> list[LoggedFrame]:
    """Return the program's own frames, innermost first."""
    frames = reversed(trace.frames) if isinstance(trace, LoggedException) else trace.frames
    logged = [frame for frame in frames if isinstance(frame, LoggedFrame) and not frame.listed]
    return [frame for frame in logged if not stack_patterns.is_library(frame)]


def _innermost(trace: Trace) -> LoggedFrame | None:
    """Return the innermost own frame that has a name: the function around a comprehension says more."""
    frames = _own_frames(trace)
    return next((frame for frame in frames if not ANONYMOUS.match(frame.function)), next(iter(frames), None))


def _is_accident(trace: Trace) -> bool:
    """Return whether the frames of an exception only show where the main process was when a worker died."""
    files = (frame.file.replace("\\", "/") for frame in trace.frames)
    return isinstance(trace, LoggedException) and any(HANDLER in file for file in files)


def add_place(cause: Cause, texts: list[LogText]) -> Cause:
    """Return a cause whose evidence names the exception first, the module, and the program's own frame, where shown."""
    first = cause.evidence[0] if cause.evidence else None
    traces = {page.name: _traces(page) for page in texts}
    name, trace = _trace_of(first, traces)
    reason, main = _abort(first, texts, traces)
    if trace is None:
        return replace(cause, evidence=[*reason, *cause.evidence][: MOST - len(main)] + main)
    innermost = _innermost(trace)
    lines = [*reason, *(line for line in cause.evidence if not (innermost and read_frame(line.text)))]
    if isinstance(trace, LoggedException):
        if trace.text and (first is None or read_frame(first.text) or RELAYED.search(first.text)):
            lines = [Evidence(name, trace.number, trace.text.strip()[:300]), *lines]
        if called := failing_module(trace):
            lines = [*lines[:1], Evidence(name, *called), *lines[1 : MOST - 2]]
    if innermost:
        lines = [*lines[: MOST - 1], Evidence(name, innermost.number, innermost.text)]
    unique = {(line.file, line.line, line.text): line for line in lines}
    return replace(cause, evidence=list(unique.values())[:MOST])


def _abort(
    first: Evidence | None, texts: list[LogText], traces: dict[str, list[Trace]]
) -> tuple[list[Evidence], list[Evidence]]:
    """Return why a process called abort(), and where its main thread was if another thread, not Python's, did.

    The line of evidence only reports that it aborted; the C library's reason stands just before.
    """
    if first is None or first.line is None or not first.text.startswith(ABORTED):
        return [], []
    number, page = first.line, next(page for page in texts if page.name == first.file)
    near = [line for line in page.lines if number - CHAINED <= line.number < number and LAST_WORDS.search(line.text)]
    reason = [Evidence(first.file, line.number, line.text.strip()[:300]) for line in near[-1:]]
    dumps = [trace for trace in traces[first.file] if isinstance(trace, LoggedThread) and trace.first > number]
    frames = [frame for dump in dumps if (frame := _innermost(dump))]
    main = [Evidence(first.file, at.number, f"the main thread was in {own_frame(at.text)}") for at in frames[-1:]]
    return reason, main


def own_frame(text: str) -> str | None:
    """Return the place that a line of a traceback names if it is the program's own: `read (data.py:7)`."""
    frame = read_frame(text)
    if frame is None or stack_patterns.is_library(frame):
        return None
    path = PurePath(frame.file)
    name = path.name if not path.name.startswith("__") else "/".join(path.parts[-2:])
    return f"{frame.function} ({name}:{frame.line})"


def frame_place(exception: LoggedException) -> str:
    """Return the program's own frame of an exception, as ` in read (data.py:7)`; else nothing."""
    innermost = None if _is_accident(exception) or not exception.traced else _innermost(exception)
    return f" in {own_frame(innermost.text)}" if innermost else ""


def _trace_of(evidence: Evidence | None, traces: dict[str, list[Trace]]) -> tuple[str, Trace | None]:
    """Return the trace that a line of evidence belongs to: it stands in it, or it announces it."""
    every = [(name, trace) for name, around in traces.items() for trace in around]
    fatal = next(((name, each) for name, each in every if isinstance(each, LoggedThread) and each.fatal), None)
    number = evidence.line if evidence and evidence.file in traces else None
    if evidence is None or number is None:
        return fatal or ("", None)
    around = traces[evidence.file]
    within = next((n for n, trace in enumerate(around) if trace.first <= number <= trace.last), None)
    if within is not None and _is_accident(around[within]):
        return evidence.file, None
    if within is not None and RELAYED.search(evidence.text) and within + 1 < len(around):
        within += 1
    if within is not None and _own_frames(around[within]):
        return evidence.file, around[within]
    if within and around[within].first - around[within - 1].last <= CHAINED and _own_frames(around[within - 1]):
        return evidence.file, around[within - 1]  # the exception that this one comes from
    if fatal:
        return fatal
    after = next((trace for trace in around if trace.first > number), None)
    return evidence.file, after if after and RELAYED.search(evidence.text) else None


def place_in(lines: Iterable[Evidence]) -> tuple[str, str]:
    """Return the module and the program's own frame that lines of evidence name; '' for what they do not."""
    texts = [line.text for line in lines]
    return next(filter(None, map(module_text, texts)), ""), next(filter(None, map(own_frame, texts)), "")
