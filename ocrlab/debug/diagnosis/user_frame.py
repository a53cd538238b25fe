"""Where in the program's own code it happened: a traceback or a faulthandler dump beside the line that says why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from ocrlab.debug.diagnosis import module_path
from ocrlab.debug.diagnosis.hangs import stack_patterns
from ocrlab.debug.diagnosis.log_lines import Line, LogText, clean
from ocrlab.hardware.processes.stack_types import Frame
from ocrlab.records import Cause, Evidence

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
    called = None if block.dump or name not in logs else module_path.failing_module(_lines(block, logs[name]))
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
    return [Evidence(first.file, at.number, f"the main thread was in {frame(at.text)}") for at in frames]


def frame(text: str) -> str | None:
    """Return the place that a line of a traceback names if it is the program's own: `read (data.py:7)`."""
    match = FRAME.match(text)
    if match is None or _foreign(text):
        return None
    path = PurePath(match["file"])
    name = path.name if not path.name.startswith("__") else "/".join(path.parts[-2:])
    return f"{match['function']} ({name}:{match['line']})"


def place(page: LogText, number: int) -> str:
    """Return the program's own frame of the traceback that ends in a line, as ` in read (data.py:7)`; else nothing."""
    for block in _blocks(page):
        if block.exception and block.exception.number == number and not block.accident:
            at = _innermost(block)
            return f" in {frame(at.text)}" if at else ""
    return ""


def _innermost(block: Block) -> Line | None:
    """Return the innermost own frame that has a name: the function around a comprehension says more."""
    return next((line for line in block.own if not ANONYMOUS.search(line.text)), next(iter(block.own), None))


def _lines(block: Block, log: bytes | str) -> list[tuple[int, str]]:
    """Return the numbered lines of a block as they were."""
    return [(line.number, line.text) for line in clean(log) if block.first <= line.number <= block.last]


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
