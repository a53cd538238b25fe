"""A failure as facts: the exception, its frames with source lines and values, the cells of its notebook.

Explanations read these facts only. What a fact cannot support is not said.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ocrlab.debug.diagnosis.explanations.source import Source

LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|^<(?!ipython|stdin)|^<frozen|/torch/|^/usr/lib/")
FRAME = re.compile(r'^\s*(?:\|\s*)*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
CELL_FRAME = re.compile(r"^(?:Cell|Input) In ?\[(?P<cell>\d+)\](?:, line (?P<line>\d+)|, in <)?(?:.*?in (?P<function>[\w.<>]+)\()?")
IPYTHON_FRAME = re.compile(r"^File (?P<file>[^\n:]+?):(?P<line>\d+)(?:, in (?P<function>[\w.<>]+)\()?")
ARROW = re.compile(r"^-+> ?(?P<line>\d+) ?(?P<code>.*)$")
CARETS = re.compile(r"^[\s~^]*\^[\s~^]*$")
RAISED = re.compile(r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?:: (?P<message>.*))?$")
KNOWN_ENDING = re.compile(r"(?:Error|Exception|Warning|Exit|Interrupt|Iteration|Failure)$|^(?:KeyError|StopIteration|Empty)$")
HEADER = re.compile(r"^(?P<indent>\s*)(?:\+ )?(?:Exception Group )?Traceback \(most recent call last\):?\s*$|^-{20,}$")
CHAINED = re.compile(r"^(?:The above exception was the direct cause|During handling of the above exception)")
WORKER = re.compile(r"Caught (?P<type>\w+) in DataLoader worker process (?P<worker>\d+)\.\s*Original Traceback")
TERMINAL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
MAX_SOURCE = 1 << 20  # bytes of a source file that is read


@dataclass(frozen=True)
class Value:
    """What is known of a value in a frame: its kind, its type, and by kind the rest (`ocrlab.debug.watch.failing_values`)."""

    name: str
    facts: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.facts.get(name)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of a tensor, an array or a table."""
        shape = self.facts.get("shape")
        return tuple(shape) if shape is not None else None

    @property
    def number(self) -> float | int | None:
        """The value of a plain number."""
        text = self.facts.get("text", "") if self.kind == "plain" else ""
        return (float(text) if "." in text or "e" in text else int(text)) if re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", text) else None

    @property
    def is_integer(self) -> bool:
        """Whether it is a tensor or array of whole numbers."""
        return self.kind in ("tensor", "array") and str(self.dtype).lstrip("u").startswith("int")

    @property
    def is_float(self) -> bool:
        """Whether it is a tensor or array of floating-point numbers."""
        return self.kind in ("tensor", "array") and "float" in str(self.dtype)


@dataclass(frozen=True)
class Frame:
    """One frame of a traceback; `code` is its source line, `expression` the part of it that failed, where known."""

    file: str
    line: int
    function: str = ""
    code: str = ""
    expression: str = ""
    values: Mapping[str, Value] = field(default_factory=dict)
    cell: int | None = None  # execution count

    @property
    def is_library(self) -> bool:
        """Whether the frame belongs to an installed package or to Python."""
        return self.cell is None and bool(LIBRARY.search(self.file))

    @property
    def place(self) -> str:
        """`train.py:12`, or `cell 3, line 2`."""
        return f"{self.file}, line {self.line}" if self.cell is not None else f"{Path(self.file).name}:{self.line}"


@dataclass(frozen=True)
class Cell:
    """A code cell: its number among the code cells, from 1, its execution count, its source."""

    number: int
    count: int | None
    text: str
    failed: bool = False

    @functools.cached_property
    def source(self) -> Source:
        """Its code as a syntax tree; magics are blank."""
        return Source.of_cell(self.text, f"cell {self.number}")

    @property
    def name(self) -> str:
        """`cell 2 (x = 1)`: its number and first line."""
        first = next((line.strip() for line in self.text.splitlines() if line.strip()), "")
        return f"cell {self.number} (`{first[:48]}{'...' if len(first) > 48 else ''}`)"


@dataclass(frozen=True)
class Failure:
    """The exception that ended a program, or a cell."""

    type: str
    message: str
    frames: Sequence[Frame] = ()
    worker: int | None = None  # of a DataLoader
    cells: Sequence[Cell] = ()
    sources: Mapping[str, Source] = field(default_factory=dict)
    log: str = ""

    @functools.cached_property
    def own_frames(self) -> list[Frame]:
        """The frames of the program itself, outermost first."""
        return [frame for frame in self.frames if not frame.is_library]

    @property
    def frame(self) -> Frame | None:
        """The innermost frame of the program itself."""
        return self.own_frames[-1] if self.own_frames else None

    def source(self, frame: Frame | None) -> Source | None:
        """The source of a frame's file or cell, if it is at hand and still says what the traceback shows."""
        if frame is None:
            return None
        if frame.cell is not None:
            return next((cell.source for cell in self.cells if f"cell {cell.number}" == frame.file), None)
        return self.sources.get(frame.file)

    def all_sources(self) -> Iterator[Source]:
        """Every source of the program that is at hand, the failing one first."""
        failing = [source for frame in reversed(self.own_frames) if (source := self.source(frame))]
        yield from dict.fromkeys([*failing, *(cell.source for cell in self.cells), *self.sources.values()])

    def values(self, *, library: bool | None = None) -> Iterator[tuple[Frame, Value]]:
        """Yield every value with its frame, innermost frame first."""
        for frame in reversed(self.frames):
            if library is None or frame.is_library == library:
                yield from ((frame, value) for value in frame.values.values())

    def value(self, name: str, frame: Frame | None = None) -> Value | None:
        """Return the value of a name in a frame, by default the innermost one of the program."""
        at = frame or self.frame
        return at.values.get(name) if at else None

    def in_library(self, function: str, file: str = "") -> Frame | None:
        """Return the innermost library frame of a function."""
        frames = [f for f in self.frames if f.is_library and f.function == function and file in f.file]
        return frames[-1] if frames else None

    @functools.cached_property
    def module(self) -> Value | None:
        """The innermost module of torch whose forward pass failed."""
        for frame in reversed(self.frames):
            owner = frame.values.get("self")
            if owner is not None and owner.kind == "module":
                return owner
        return None


def from_values(failure: Failure, frames: Sequence[Mapping[str, Any]]) -> Failure:
    """Return the failure with the values that a watched program has described."""
    described = []
    for record in frames:
        file, line = str(record.get("file")), int(record.get("line") or 0)
        values = {name: Value(name, facts) for name, facts in dict(record.get("values") or {}).items()}
        same = next((f for f in failure.frames if f.line == line and f.file == file), None)
        described.append(
            Frame(file, line, str(record.get("function")), same.code if same else "", str(record.get("expression") or ""), values)
        )
    return replace(failure, frames=described) if described else failure


def from_log(log: str) -> Failure | None:
    """Return the last exception that a log shows, the one of a data worker where it was passed on."""
    lines = TERMINAL.sub("", log).replace("\r", "").splitlines()
    starts = [number for number, line in enumerate(lines) if HEADER.match(line)]
    failures = [failure for start in starts if (failure := _parse(lines, start)) is not None]
    if not failures:
        ending = next((match for line in reversed(lines) if (match := RAISED.match(line)) and match["message"] and KNOWN_ENDING.search(match["type"])), None)
        return Failure(ending["type"], ending["message"], log=log) if ending else None
    last = failures[-1]
    worker = next((match for failure in failures[-2:] if (match := WORKER.search(failure.message))), None)
    if worker and last.type.rpartition(".")[2] == worker["type"]:
        last = replace(last, worker=int(worker["worker"]))
    return replace(last, log=log)


def _parse(lines: Sequence[str], start: int) -> Failure | None:
    """Parse one traceback of Python or IPython, from its header to the end of its message."""
    frames: list[Frame] = []
    number = start + 1
    indent = len(lines[start]) - len(lines[start].lstrip(" |+"))
    while number < len(lines):
        text = lines[number]
        bare = text[indent:] if indent and not text[:indent].strip(" |") else text
        frame = FRAME.match(bare)
        cell = CELL_FRAME.match(bare)
        file = IPYTHON_FRAME.match(bare)
        if frame:
            code = lines[number + 1].strip() if number + 1 < len(lines) and lines[number + 1].startswith("    ") else ""
            code = "" if FRAME.match(code) else code
            carets = lines[number + 2] if code and number + 2 < len(lines) and CARETS.match(lines[number + 2]) else ""
            expression = _marked(lines[number + 1], carets) if carets else ""
            frames.append(Frame(frame["file"], int(frame["line"]), frame["function"] or "", code, expression))
        elif cell or file:
            match = cell or file
            assert match is not None
            frames.append(
                Frame(file["file"] if file else f"In [{match['cell']}]" if cell else "", int(match["line"] or 0), match["function"] or "", cell=int(cell["cell"]) if cell else None)
            )
        elif (arrow := ARROW.match(bare)) and frames:
            frames[-1] = replace(frames[-1], line=int(arrow["line"]), code=arrow["code"].strip())
        elif (raised := RAISED.match(bare)) and (frames or KNOWN_ENDING.search(raised["type"])) and "Traceback" not in bare:
            return Failure(raised["type"], _message(lines, number, raised["message"] or "", indent), frames)
        elif HEADER.match(text) or CHAINED.match(bare):
            return None
        number += 1
    return None


def _message(lines: Sequence[str], start: int, first: str, indent: int) -> str:
    """Return the message with its further lines, which end at a blank line before another paragraph or a traceback."""
    parts = [first]
    for text in lines[start + 1 : start + 60]:
        if HEADER.match(text) or FRAME.match(text) or CHAINED.match(text.strip()) or re.match(r"\[W|\d{4}-\d\d-\d\d|\[rank", text):
            break
        parts.append(text)
    return "\n".join(parts).strip()


def _marked(code: str, carets: str) -> str:
    """Return the part of a source line above its carets."""
    first = min((at for at in (carets.find("^"), carets.find("~")) if at >= 0), default=0)
    return code[first : len(carets.rstrip())].strip()


def from_notebook(cells: Sequence[Mapping[str, Any]]) -> Failure | None:
    """Return the last error of an executed notebook, given its cells as the file holds them."""
    parsed: list[Cell] = []
    failure: Failure | None = None
    for cell in cells:
        if cell.get("cell_type") != "code":
            continue
        source, outputs = cell.get("source") or "", cell.get("outputs") or []
        errors = [output for output in outputs if isinstance(output, Mapping) and output.get("output_type") == "error"]
        count = cell.get("execution_count")
        text = "".join(map(str, source)) if isinstance(source, list) else str(source)
        parsed.append(Cell(len(parsed) + 1, count if isinstance(count, int) else None, text, bool(errors)))
        for error in errors:
            failure = from_log("\n".join(map(str, error.get("traceback") or ())))
            failure = failure or Failure(str(error.get("ename")), str(error.get("evalue")))
    return with_cells(failure, parsed) if failure else None


def with_cells(failure: Failure, cells: Sequence[Cell]) -> Failure:
    """Return a failure with the cells of its notebook; its frames are named by their number."""
    failed = next((cell for cell in reversed(cells) if cell.failed), None)
    frames = []
    for frame in failure.frames:
        same = [cell for cell in cells if cell.count == frame.cell and frame.cell is not None]
        here = next((cell for cell in same if cell is failed), same[-1] if same else None)
        frames.append(replace(frame, file=f"cell {here.number}") if here else frame)
    return replace(failure, frames=frames, cells=cells)


def with_sources(failure: Failure) -> Failure:
    """Read the sources of the program's own frames that are at hand and unchanged since the traceback."""
    sources: dict[str, Source] = {}
    for frame in failure.own_frames:
        if frame.cell is None and frame.file not in sources and (source := _read(frame)):
            sources[frame.file] = source
    frames = [
        replace(frame, code=sources[frame.file].line(frame.line).strip()) if not frame.code and frame.file in sources else frame
        for frame in failure.frames
    ]
    return replace(failure, sources=sources, frames=frames)


def _read(frame: Frame) -> Source | None:
    path = Path(frame.file)
    try:
        if path.suffix != ".py" or not path.is_file() or path.stat().st_size > MAX_SOURCE:
            return None
        source = Source(path.read_text(encoding="utf-8", errors="replace"), frame.file)
    except OSError:
        return None
    same = not frame.code or source.line(frame.line).strip() == frame.code
    return source if same else None
