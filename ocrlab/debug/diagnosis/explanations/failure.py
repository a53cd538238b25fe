"""A failure as facts: the exception, its frames with source lines and values, the cells of its notebook.

Explanations read these facts only. What a fact cannot support is not said.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ocrlab import safe_read
from ocrlab.debug.diagnosis.explanations.source import Source
from ocrlab.debug.diagnosis.log_records import LoggedFrame, read_records
from ocrlab.debug.diagnosis.log_text import clean_lines

LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|^<(?!ipython|stdin)|^<frozen|/torch/|^/usr/lib/|/ocrlab/debug/|\.pyx$"
    r"|^[A-Za-z]:/.*(?:[Pp]ython[\d.]*|conda\d*|/envs/[^/]+)/[Ll]ib/"
)
WORKER = re.compile(r"Caught (?P<type>\w+) in DataLoader worker process (?P<worker>\d+)")
CELL = re.compile(r"^cell (\d+)$")
NO_ATTRIBUTE, SAMPLE = "<no attribute>", "<sample>"  # as failing_values.py has them
CHAIN = 6  # exceptions back from the last one, among which is the one that passed it on
MESSAGE_LINES = 60
USER_CODE = "from user code:"
MAX_OUTPUT = 1 << 16  # characters of what a cell has printed
MAX_SOURCE = 1 << 20  # bytes of a source file that is read


@dataclass(frozen=True)
class Value:
    """What is known of a value: its kind, its type, and by kind the rest, as `failing_values.py` writes it."""

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
        return (
            (float(text) if "." in text or "e" in text else int(text))
            if re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", text)
            else None
        )

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
        return self.cell is None and bool(LIBRARY.search(self.file.replace("\\", "/")))

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
    output: str = ""  # what it has printed

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

    @property
    def without_attribute(self) -> Value | None:
        """The object that an AttributeError is about; `near` has the names of similar spelling that it knows."""
        return self.frames[-1].values.get(NO_ATTRIBUTE) if self.frames else None

    @property
    def missing_sample(self) -> Value | None:
        """The sample of a batch that is None: its `index`, and the `entries` that lists of the data set have there."""
        return next((frame.values[SAMPLE] for frame in self.frames if SAMPLE in frame.values), None)

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
    described, logged = [], {(frame.file, frame.line): frame for frame in failure.frames}
    for record in frames:
        file, line = str(record.get("file")), int(record.get("line") or 0)
        values = {name: Value(name, facts) for name, facts in dict(record.get("values") or {}).items()}
        shown = logged.get((file, line), Frame(file, line))  # the log has the lines of libraries
        code, expression = str(record.get("code") or shown.code), str(record.get("expression") or shown.expression)
        described.append(Frame(file, line, str(record.get("function")), code, expression, values))
    if not described:
        return failure
    ends = [(frame.file, frame.line) for frame in (described[-1], *failure.frames[-1:])]
    if failure.worker is None or len(set(ends)) == 1:
        return replace(failure, frames=described)
    # The worker's frames are those of the log; what was described is the main process, which got the exception.
    places = {(frame.file, frame.line) for frame in described}
    return replace(failure, frames=[*described, *(f for f in failure.frames if (f.file, f.line) not in places)])


def from_log(log: str) -> Failure | None:
    """Return the last exception that a log shows, the one of a data worker where it was passed on."""
    lines = clean_lines(log)
    exceptions = [exception for exception in read_records(lines).exceptions if exception.type]
    if not exceptions:
        return None
    last = exceptions[-1]
    relays = [(e, m) for e in exceptions[-CHAIN:] if (m := WORKER.search(e.message)) and m["type"] == last.type]
    relay, relayed = relays[-1] if relays else (last, None)
    following = [line.text for line in lines if last.number < line.number <= last.number + MESSAGE_LINES]
    traced = following[following.index(USER_CODE) :] if USER_CODE in following else []  # by torch.compile
    frames_of_it = itertools.takewhile(lambda text: text.startswith((" ", USER_CODE)), traced)
    message = "\n".join([last.message, *itertools.takewhile(_continues, following), *frames_of_it]).strip()
    frames = [_frame(frame) for frame in [*(relay.frames if relay is not last else []), *last.frames]]
    return Failure(last.text.partition(":")[0].strip(), message, frames, int(relayed["worker"]) if relayed else None)


def _continues(text: str) -> bool:
    return not text.strip() or (text[0] in " \t" and 'File "' not in text)


def _frame(frame: LoggedFrame) -> Frame:
    cell = CELL.match(frame.file)
    code = frame.source.strip()
    return Frame(
        frame.file,
        frame.line,
        frame.function,
        code,
        frame.code if frame.marks else "",
        cell=int(cell[1]) if cell else None,
    )


def from_notebook(cells: Sequence[Mapping[str, Any]]) -> Failure | None:
    """Return the last error of an executed notebook, given its cells as the file holds them."""
    parsed: list[Cell] = []
    failure: Failure | None = None
    for cell in cells:
        if not isinstance(cell, Mapping) or cell.get("cell_type") != "code":
            continue
        source, outputs = cell.get("source") or "", cell.get("outputs")
        outputs = outputs if isinstance(outputs, list) else []
        errors = [output for output in outputs if isinstance(output, Mapping) and output.get("output_type") == "error"]
        count = cell.get("execution_count")
        text = "".join(map(str, source)) if isinstance(source, list) else str(source)
        printed = [output.get("text") for output in outputs if isinstance(output, Mapping)]
        shown = "".join("".join(map(str, part)) if isinstance(part, list) else str(part or "") for part in printed)
        parsed.append(
            Cell(len(parsed) + 1, count if isinstance(count, int) else None, text, bool(errors), shown[-MAX_OUTPUT:])
        )
        for error in errors:
            lines = error.get("traceback")
            failure = from_log("\n".join(map(str, lines)) if isinstance(lines, list) else str(lines))
            failure = failure or Failure(str(error.get("ename")), str(error.get("evalue")))
    return with_cells(failure, parsed) if failure else None


def with_cells(failure: Failure, cells: Sequence[Cell]) -> Failure:
    """Return a failure with the cells of its notebook; its frames are named by their number."""
    failed = next((cell for cell in reversed(cells) if cell.failed), None)
    frames = []
    for frame in failure.frames:
        same = [cell for cell in cells if cell.count == frame.cell and frame.cell is not None]
        if frame.cell is None and not frame.is_library and frame.code:  # older kernels name a file of their own
            same = [cell for cell in cells if cell.source.line(frame.line).strip() == frame.code]
        here = next((cell for cell in same if cell is failed), same[-1] if same else None)
        frames.append(replace(frame, file=f"cell {here.number}", cell=here.count or 0) if here else frame)
    return replace(failure, frames=frames, cells=cells)


def with_sources(failure: Failure) -> Failure:
    """Read the sources of the program's own frames that are at hand and unchanged since the traceback."""
    sources: dict[str, Source] = {}
    for frame in failure.own_frames:
        if frame.cell is None and frame.file not in sources and (source := _read(frame)):
            sources[frame.file] = source
    frames = [
        replace(frame, code=sources[frame.file].line(frame.line).strip())
        if not frame.code and frame.file in sources
        else frame
        for frame in failure.frames
    ]
    return replace(failure, sources=sources, frames=frames)


def _read(frame: Frame) -> Source | None:
    path = Path(frame.file)
    try:
        if path.suffix != ".py" or not path.is_file() or path.stat().st_size > MAX_SOURCE:
            return None
        source = Source(safe_read.read_text(path), frame.file)
    except OSError:
        return None
    same = not frame.code or source.line(frame.line).strip() == frame.code
    return source if same else None
