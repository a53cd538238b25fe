"""Where it happened: the module of the network, the operator, and the frame in the program's own code.

Torch's own `Module._call_impl` follows a frame whose expression calls a module, so that the calls of a traceback spell
the module's name: `self.bert(`, `self.embeddings(`, `self.word_embeddings(`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import PurePath

from ocrlab.debug.diagnosis.hangs import stack_patterns
from ocrlab.debug.diagnosis.log_text import Line, LogText, clean_lines
from ocrlab.hardware.processes.stack_types import Frame
from ocrlab.records import Cause, Evidence

CALLING = re.compile(r"(?:_wrapped_call_impl|_call_impl|__call__|_slow_forward)\Z")  # functions of Module
OURS = re.compile(
    r"ocrlab[/\\]debug[/\\]recorder[/\\](?:\w+[/\\])*\w+\.py\Z"
)  # stand between two of them where a training is recorded
MODULE = re.compile(r"torch[/\\]nn[/\\]modules[/\\]module\.py\Z")
CALLEE = re.compile(r"([A-Za-z_]\w*(?:\.\w+|\[\w+\])*)\(")
OPERATOR = re.compile(r"\b(?:torch|F|functional|_VF)(?:\.\w+)*\.(\w+)\(")
QUOTED_FRAME = re.compile(r'^\s*File "([^"\n]{1,500})", line \d+,? in (\S+)')
CONTAINER = re.compile(r"torch[/\\]nn[/\\]modules[/\\]container\.py\Z")  # Sequential: which member, no traceback says
TORCH = re.compile(r"[/\\]torch[/\\](?!nn[/\\])")  # as checkpoint, which calls whatever it was given
LATE = re.compile(
    r"(?:CUDA|HIP|XPU) error|CU(?:BLAS|SOLVER|SPARSE|FFT)_STATUS|cuDNN error|CUDNN_STATUS|device-side assert"
)
SURFACED = " (where it surfaced)"
MODULE_TEXT = re.compile(rf"^module [\w.*?]+(?:, operator \w+)?(?:{re.escape(SURFACED)})?\Z")
MARKS = re.compile(r"^\s*[~^]+[~^ ]*$")
WRAPPERS = {"module", "_orig_mod", "_forward_module", "_fsdp_wrapped_module"}  # DataParallel, compile, Lightning, FSDP
NO_OPERATORS = {"checkpoint", "compile", "no_grad", "autocast", "tensor", "load", "save", "manual_seed"}
FRAME = re.compile(r'^\s*File "(?P<file>[^"\n]{1,500})", line (?P<line>\d+),? in (?P<function>\S+)')
TRACEBACK = "Traceback (most recent call last):"
DUMP = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+[^\n]{0,60}\(most recent call first\)")
RELAYED = re.compile(r"Caught \w+ in \w[\w ]{0,40}\d")  # torch/_utils.py: another process's exception, told again
ANONYMOUS = re.compile(r"in <(?!module)\w+>")
HANDLER = "_utils/signal_handling.py"  # torch raises there for a dead worker, wherever the main process is just then
FATAL = "Current thread"
ABORTED = "Fatal Python error: Aborted"
LAST_WORDS = re.compile(r"^\s*what\(\): +\S|^terminate called|: Assertion `")  # of the C library before it aborts
CHAINED = 4  # lines from a traceback to the one that it was the cause of
MOST = 4  # lines of evidence


@dataclass(frozen=True)
class Call:
    """One frame: its file and function, and the part of its line that was at work."""

    file: str
    function: str
    code: str
    number: int

    @property
    def calls_module(self) -> bool:
        """Tell whether this is torch's way into a module's forward."""
        return bool(MODULE.search(self.file) and CALLING.match(self.function))


def failing_module(lines: Sequence[tuple[int, str]]) -> tuple[int, str] | None:
    """Return the line of a traceback that names its operator, and in words the module and the operator; None for none.

    `lines` are numbered, from the traceback to its exception; without a call of a module nothing is said. What a
    device reports surfaces later than it happened, at whatever asks next.
    """
    calls = list(_calls(lines))
    names: list[str] = []
    local = ""
    for call, into in pairwise(calls):
        if call.calls_module or not into.calls_module:
            continue
        name = "*" if CONTAINER.search(call.file) else "self.?" if TORCH.search(call.file) else _callee(call.code)
        if name.startswith("self.") or names:
            names += [part for part in (name or "?").removeprefix("self.").split(".") if part not in WRAPPERS]
        elif name == "*" and local:
            local += ".*"  # of which network the member is, is known at least
        elif name and name != "self":
            local = name  # the whole network: its own name is not a part of its modules' names
    if not calls:
        return None
    last = calls[-1]
    operators = list(OPERATOR.finditer(last.code))
    operator = operators[-1][1] if len(operators) == 1 and operators[-1][1] not in NO_OPERATORS else ""
    if len(names) > 1 and set(names) == {"?"}:  # in a compiled graph, say: not one name is known
        names = ["?"] if operator else []
    if not names and not local:
        return None
    where = f"module {'.'.join(names) or local}"
    where += f", operator {operator}" if operator else ""
    return last.number, where + SURFACED * bool(LATE.search(lines[-1][1]))


def module_text(text: str) -> str:
    """Return a line of evidence if ocrlab wrote it, else nothing."""
    return text if MODULE_TEXT.match(text) else ""


def _calls(lines: Sequence[tuple[int, str]]) -> Iterator[Call]:
    at = 0
    while at < len(lines):
        frame = QUOTED_FRAME.match(lines[at][1])
        number = lines[at][0]
        at += 1
        if not frame:
            continue
        code = marks = ""
        ours = OURS.search(frame[1])
        if at < len(lines) and not QUOTED_FRAME.match(lines[at][1]):
            number, code = lines[at]
            at += 1
            if at < len(lines) and MARKS.match(lines[at][1]):
                marks = lines[at][1]
                at += 1
        if not ours:
            yield Call(frame[1].replace("\\", "/"), frame[2], _marked(code, marks), number)


def _marked(code: str, marks: str) -> str:
    """Return the part of a line that is marked below it, all of it where nothing is."""
    begin = len(marks) - len(marks.lstrip())
    return (code[begin : len(marks.rstrip())] if marks else code).strip()


def _callee(code: str) -> str:
    """Return the name of the module that an expression calls; `self.?` where several could be meant.

    Outer calls come first: of `self.relu(self.conv(x))` without marks nobody knows which one is at work.
    """
    callees = [name for name in CALLEE.findall(code) if name.startswith("self.") or "." not in name]
    mine = [name for name in callees if name.startswith("self.")] or callees
    if len(mine) != 1 and not (mine and code.startswith(f"{mine[0]}(") and code.endswith(")")):
        return "self.?" if mine and mine[0].startswith("self.") else ""
    return re.sub(r"\[(\w+)\]", r".\1", mine[0])


@dataclass
class Block:
    """One traceback or dump: its own frames innermost first, its lines, and the exception that ends a traceback."""

    first: int
    last: int
    fatal: bool
    own: list[Line] = field(default_factory=list)
    exception: Line | None = None
    dump: bool = False
    accident: bool = False  # its frames only tell where the main process was when a worker died


def add_place(cause: Cause, texts: list[LogText], logs: Mapping[str, bytes | str]) -> Cause:
    """Return a cause whose evidence names the exception first, the module, and the program's own frame, where shown.

    `logs` are the texts as they were: in `texts` the source that a traceback quotes is blank.
    """
    first = cause.evidence[0] if cause.evidence else None
    blocks = {page.name: list(_blocks(page)) for page in texts}
    name, block = _block_of(first, blocks)
    words = _last_words(first, texts)
    if block is None:
        main = _main_thread(first, blocks)
        return replace(cause, evidence=[*words, *cause.evidence][: MOST - len(main)] + main)
    lines = [line for line in cause.evidence if not FRAME.match(line.text)] if block.own else list(cause.evidence)
    exception, lines = block.exception, [*words, *lines]
    if exception and (first is None or FRAME.match(first.text) or RELAYED.search(first.text)):
        lines = [Evidence(name, exception.number, exception.text.strip()[:300]), *lines]
    called = None if block.dump or name not in logs else failing_module(_lines(block, logs[name]))
    if called:
        lines = [*lines[:1], Evidence(name, *called), *lines[1 : MOST - 2]]
    at = _innermost(block)
    if at:
        lines = [*lines[: MOST - 1], Evidence(name, at.number, at.text.strip())]
    unique = {(line.file, line.line, line.text): line for line in lines}
    return replace(cause, evidence=list(unique.values())[:MOST])


def _last_words(first: Evidence | None, texts: list[LogText]) -> list[Evidence]:
    """Return why a process called abort(), where the evidence only tells that it did: its line stands just before."""
    if first is None or first.line is None or not first.text.startswith(ABORTED):
        return []
    page = next(page for page in texts if page.name == first.file)
    rows = zip(page.numbers, page.text.split("\n"), strict=False)
    near = [(n, text) for n, text in rows if first.line - CHAINED <= n < first.line and LAST_WORDS.search(text)]
    return [Evidence(first.file, number, text.strip()[:300]) for number, text in near[-1:]]


def _main_thread(first: Evidence | None, blocks: dict[str, list[Block]]) -> list[Evidence]:
    """Return where the main thread was when another one aborted that is none of Python's."""
    if first is None or first.line is None or not first.text.startswith(ABORTED):
        return []
    main = [block for block in blocks[first.file] if block.dump and block.first > first.line and block.own][-1:]
    frames = filter(None, map(_innermost, main))
    return [Evidence(first.file, at.number, f"the main thread was in {own_frame(at.text)}") for at in frames]


def own_frame(text: str) -> str | None:
    """Return the place that a line of a traceback names if it is the program's own: `read (data.py:7)`."""
    match = FRAME.match(text)
    if match is None or _foreign(text):
        return None
    path = PurePath(match["file"])
    name = path.name if not path.name.startswith("__") else "/".join(path.parts[-2:])
    return f"{match['function']} ({name}:{match['line']})"


def frame_place(page: LogText, number: int) -> str:
    """Return the program's own frame of the traceback that ends in a line, as ` in read (data.py:7)`; else nothing."""
    for block in _blocks(page):
        if block.exception and block.exception.number == number and not block.accident:
            at = _innermost(block)
            return f" in {own_frame(at.text)}" if at else ""
    return ""


def _innermost(block: Block) -> Line | None:
    """Return the innermost own frame that has a name: the function around a comprehension says more."""
    return next((line for line in block.own if not ANONYMOUS.search(line.text)), next(iter(block.own), None))


def _lines(block: Block, log: bytes | str) -> list[tuple[int, str]]:
    """Return the numbered lines of a block as they were."""
    return [(line.number, line.text) for line in clean_lines(log) if block.first <= line.number <= block.last]


def _foreign(text: str) -> bool:
    """Tell whether a line is a frame of a library; Python's own frozen modules are blank by now."""
    match = FRAME.match(text)
    if match is None:
        return False
    return not match["file"].strip() or stack_patterns.is_library(
        Frame(match["function"], match["file"], int(match["line"]))
    )


def _block_of(evidence: Evidence | None, blocks: dict[str, list[Block]]) -> tuple[str, Block | None]:
    """Return the block that a line of evidence belongs to: it stands in it, or it announces it."""
    fatal = next(((name, block) for name, file_blocks in blocks.items() for block in file_blocks if block.fatal), None)
    number = evidence.line if evidence and evidence.file in blocks else None
    if evidence is None or number is None:
        return fatal or ("", None)
    around = blocks[evidence.file]
    within = next((n for n, block in enumerate(around) if block.first <= number <= block.last), None)
    if within is not None and around[within].accident:
        return evidence.file, None
    if within is not None and RELAYED.search(evidence.text) and within + 1 < len(around):
        within += 1
    if within is not None and around[within].own:
        return evidence.file, around[within]
    if within and around[within].first - around[within - 1].last <= CHAINED and around[within - 1].own:
        return evidence.file, around[within - 1]  # the exception that this one comes from
    if fatal:
        return fatal
    after = next((block for block in around if block.first > number), None)
    return evidence.file, after if after and RELAYED.search(evidence.text) else None


def _blocks(page: LogText) -> Iterator[Block]:
    block: Block | None = None
    dump = False
    for number, text in zip(page.numbers, page.text.split("\n"), strict=False):
        if TRACEBACK in text or DUMP.match(text):
            if block:
                yield block
            dump = TRACEBACK not in text
            block = Block(number, number, text.startswith(FATAL), dump=dump)
        elif block and FRAME.match(text):
            block.last = number
            block.accident |= HANDLER in text.replace("\\", "/")
            if not _foreign(text):
                line = Line(number, text)
                block.own = [*block.own, line] if dump else [line, *block.own]
        elif block and text.startswith((" ", "\t")):
            block.last = number
        elif block:
            if not dump and text.strip():
                block.exception = Line(number, text)
                block.last = number
            yield block
            block = None
    if block:
        yield block
