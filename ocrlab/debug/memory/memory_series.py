"""Memory over time: the series that a run left, and whether, how fast and how surely they grow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ocrlab.debug.diagnosis.oom_message import UNITS
from ocrlab.debug.flight_record import ring_reader
from ocrlab.debug.instruments.leaks import growth_slope
from ocrlab.errors import OcrlabError

SURE = 0.95
LEAST_BYTES, LEAST_SHARE = 8 << 20, 0.02  # of growth in all: less is how memory breathes
POINTS = 6


@dataclass(frozen=True)
class Growth:
    """Bytes for each unit (step or second), `low` to `high` with 95 %, the confidence that it grows at all (0..1).

    `grows` is false for what levels off, for too few points and for too little; `left` is how many units remain until
    the limit, None where it does not grow or has no limit.
    """

    rate: float
    low: float
    high: float
    confidence: float
    points: int
    rise: float
    grows: bool
    left: float | None = None


def growth(at: Sequence[float], values: Sequence[float], limit: float | None = None) -> Growth:
    """Return how values (bytes) grow over `at` (steps or seconds), of which there are as many."""
    slope = growth_slope.slope(at, values)
    rise = float(values[-1] - min(values)) if values else 0.0
    enough = rise >= max(LEAST_BYTES, LEAST_SHARE * max(values, default=0.0))
    grows = bool(
        slope.points >= POINTS and slope.confidence >= SURE and slope.low > 0 and enough
        and growth_slope.still_grows(at, values)
    )  # fmt: skip
    left = max(0.0, limit - values[-1]) / slope.value if grows and limit is not None else None
    return Growth(slope.value, slope.low, slope.high, slope.confidence, slope.points, rise, grows, left)


MOST = 2000  # points of one series
FEWEST = 6
START, LONG = 10.0, 30.0  # seconds in which a program imports and builds; of a run that went on after that
# mem: 3.2G, memory: 8732 (MMDetection, in MB), GPU_mem 3.42G, allocated=1.2 GiB, rss 412 MB; never a highest value
FIGURE = re.compile(
    r"(?<![\w./-])(?P<name>(?:gpu|cuda|cpu|host|ram|vram|current|used)?[ _]?(?:mem(?:ory)?(?:_allocated|_usage|_used)?"
    r"|allocated|reserved|rss|vram|MA))\b\s*[:=(]?\s*(?P<number>\d+(?:\.\d+)?)\s?(?P<unit>[KMGT]i?B?|B|bytes)?\b",
    re.IGNORECASE,
)
HIGHEST = re.compile(r"max|peak|total|capacity|free|out of memory|Tried to allocate", re.IGNORECASE)
HEADING = re.compile(r"(?:gpu|cuda|cpu)?_?(?:mem(?:ory)?|vram|ram|rss)", re.IGNORECASE)  # of a column
CELL = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[KMGT])(?:i?B)?")


@dataclass(frozen=True)
class Series:
    """Bytes over steps or seconds: `what` is measured, `source` is the file, `where` its place: gpu, host or shm.

    `unit` is step, second or line. An `early` one covers little more than a start, in which every program grows.
    """

    what: str
    where: str
    unit: str
    source: str
    at: list[float]
    values: list[float]
    early: bool = False


def gather(folder: Path | None, texts: Mapping[str, str], facts: Mapping[str, Any]) -> list[Series]:
    """Return every series of at least six points, the best source first."""
    every = [*_flight(folder), *_watched(facts), *_lines(texts)]
    return [series for series in every if len(series.values) >= FEWEST]


def _flight(folder: Path | None) -> Iterable[Series]:
    for path in ring_reader.find_rings(folder) if folder else []:
        try:
            steps = [step for step in ring_reader.read_ring(path).steps if step.memory]
        except (OcrlabError, OSError):
            continue
        names = [name for name in (steps[-1].memory if steps else {}) if not name.endswith("peak")]
        for name in sorted(names, key=lambda key: (key == "rss", "reserved" in key)):
            points = [(float(step.micro), float(step.memory[name])) for step in steps if name in step.memory]
            yield _series(name, "host" if name == "rss" else "gpu", "step", f"flight/{path.name}", points)
        if len(steps) >= FEWEST:
            return  # the newest start is the one that ended


def _watched(facts: Mapping[str, Any]) -> Iterable[Series]:
    """Yield what the watcher saw: {"memory": {"seconds": [...], "tree": [...], "shm": [...]}}."""
    memory = facts.get("memory")
    if not isinstance(memory, Mapping):
        return
    seconds = memory.get("seconds") or []
    for name in ("tree", "shm"):
        values = memory.get(name) or []
        if len(values) == len(seconds) and all(isinstance(figure, int | float) for figure in [*values, *seconds]):
            what, where = ("all processes", "host") if name == "tree" else ("shared memory", "shm")
            early = not seconds or seconds[-1] < LONG
            points = [point for point in zip(seconds, values, strict=True) if early or point[0] >= START]
            yield replace(_series(what, where, "second", "facts.json", points), early=early)


def _lines(texts: Mapping[str, str]) -> Iterable[Series]:
    for file, text in texts.items():
        series: dict[str, list[tuple[float, float, bool]]] = {}
        column: tuple[int, str] | None = None  # of a table whose head went by
        for number, line in enumerate(text.splitlines(), 1):
            cells = line[:2000].split()
            column = _column(cells) or column
            if len(line) > 2000 or HIGHEST.search(line):
                continue
            cell = CELL.fullmatch(cells[column[0]]) if column and len(cells) > column[0] else None
            if cell and column:
                size = float(cell["number"]) * UNITS[f"{cell['unit'].lower()}ib"]
                series.setdefault(column[1], []).append((number, size, True))
            for match in FIGURE.finditer(line):
                unit = (match["unit"] or "").lower()
                size = float(match["number"]) * (UNITS.get(unit) or UNITS.get(f"{unit}b") or 1)
                series.setdefault(match["name"].lower().strip(), []).append((number, size, bool(unit)))
        for name, points in series.items():
            sized = [(at, size) for at, size, unit in points if unit]
            figures = sized or [(at, size) for at, size, _ in points]
            top = max(size for _, size in figures)  # without a unit large ones are bytes, tiny ones GB, others MB
            scale = 1 if sized or top > 1e7 else 2**20 if top > 200 else 2**30
            where = "host" if re.search("rss|host|cpu|ram", name) and "vram" not in name else "gpu"
            yield _series(name, where, "line", file, [(at, size * scale) for at, size in figures])


def _column(cells: Sequence[str]) -> tuple[int, str] | None:
    """Return where the head of a table, in words, has a column of memory, and its name; None for any other line."""
    if len(cells) < 3 or any(re.search(r"\d", cell) for cell in cells):
        return None
    return next(((at, cell.lower()) for at, cell in enumerate(cells) if HEADING.fullmatch(cell)), None)


def _series(what: str, where: str, unit: str, source: str, points: Sequence[tuple[float, float]]) -> Series:
    newest = list(points)[-MOST:]
    return Series(what, where, unit, source, [at for at, _ in newest], [value for _, value in newest])
