"""The memory of one step, block by block, as a timeline, a peak, a table by module, and as text; no torch.

A block is one storage from its birth to its death, counted in events: births and deaths in their order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np

KINDS = ("parameters", "buffers", "optimizer", "gradients", "earlier", "input", "activations", "workspace")
LABELS = {
    "parameters": "parameters",
    "buffers": "buffers",
    "optimizer": "optimiser state",
    "gradients": "gradients",
    "earlier": "from before the step",
    "input": "batch",
    "activations": "activations",
    "workspace": "workspace",
}
SUMS = ("parameters", "buffers", "gradients", "optimizer", "activations")  # of a row; the others are highest values
HIGHEST = ("workspace", "forward", "backward")
OUTSIDE = "(outside the model)"
PHASES = {"recompute": "backward", "optimizer": "optimiser"}  # of a block, as they are drawn
DURING = {
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "recompute": "while recomputing",
    "evaluation": "in evaluation",
    "optimizer": "in the optimizer",
}
POINTS = 120  # of a timeline; each keeps the highest of what it stands for


@dataclass(slots=True)
class Block:
    """One storage: its bytes, what created it (module, op, phase), its kind, and the events between which it lived."""

    bytes: int
    device: str
    module: str
    op: str
    phase: str
    born: int
    died: int | None = None
    kind: str = "workspace"
    owner: str = ""  # the module that it counts for; of an activation the one that saved it
    step: int = 0  # in which it was born
    stack: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """What one module held in a step, in bytes; workspace and the two peaks are highest values, the others sums.

    `forward` and `backward` are the most that was alive in all, in whichever module, while this one ran.
    """

    module: str
    parameters: int = 0
    buffers: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    workspace: int = 0
    forward: int = 0
    backward: int = 0


@dataclass(frozen=True)
class Peak:
    """The moment of a step at which most was alive: bytes, the operator and module that ran, and the parts."""

    bytes: int = 0
    module: str = OUTSIDE
    op: str = ""
    phase: str = ""
    parts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Segment:
    """A stretch of a timeline in which one part of the model ran: from and to are indices of the timeline.

    `module` has the first parts of the name; `phase` is forward, backward (also where it is computed again), optimizer,
    evaluation or outside.
    """

    start: int
    end: int
    module: str
    phase: str


@dataclass(frozen=True)
class Process:
    """What the device or the process really held, in bytes: before the watch, at the step's end, and at most.

    `cuda` tells whose figures they are: the allocator's, or the resident memory of the process.
    """

    cuda: bool = False
    before: int = 0  # without the tensors that were known then: context, libraries
    end: int = 0
    highest: int = 0


@dataclass(frozen=True)
class Step:
    """One step: timeline (bytes by kind), the stretches of its modules, the peak, the table, and what stayed alive."""

    number: int
    device: str
    timeline: dict[str, list[int]]
    segments: list[Segment]
    peak: Peak
    rows: list[Row]
    end: dict[str, int]  # bytes by kind when the step ended
    process: Process = Process()


def summarise(number: int, blocks: Iterable[Block], begin: int, end: int, device: str) -> Step:
    """Return the step whose events are `begin` to `end`, both included, on one device (cpu, cuda:0)."""
    here = [b for b in blocks if b.device == device and b.born <= end and (b.died is None or b.died >= begin)]
    change = np.zeros((end - begin + 2, len(KINDS)), dtype=np.int64)
    for block in here:
        column = KINDS.index(block.kind)
        change[max(block.born - begin, 0), column] += block.bytes
        if block.died is not None and block.died <= end:
            change[max(block.died - begin, 0), column] -= block.bytes
    by_kind = change[:-1].cumsum(axis=0)  # (E, K) bytes that are alive after each event
    total = by_kind.sum(axis=1)
    at = int(total.argmax())
    parts = dict(zip(KINDS, by_kind[at].tolist(), strict=True))
    alive = [b for b in here if b.phase and b.born <= begin + at and (b.died is None or b.died > begin + at)]
    newest = max(alive, key=lambda b: b.born, default=None)
    place = (newest.module, newest.op, newest.phase) if newest else (OUTSIDE, "", "")
    # What stands for the timeline: of each stretch its highest point, and the last one of all.
    bounds = np.unique(np.linspace(0, len(total), min(len(total), POINTS) + 1).astype(int))
    picked = np.unique([*(a + int(total[a:b].argmax()) for a, b in pairwise(bounds.tolist())), len(total) - 1])
    return Step(
        number=number,
        device=device,
        timeline={kind: by_kind[picked, i].tolist() for i, kind in enumerate(KINDS)},
        segments=_segments(here, begin, picked),
        peak=Peak(int(total[at]), *place, parts),
        rows=_rows(here, begin, end, total),
        end=dict(zip(KINDS, by_kind[-1].tolist(), strict=True)),
    )


def group_rows(rows: Sequence[Row], depth: int = 2) -> list[Row]:
    """Return rows of modules `depth` names deep (encoder.layer1), each with all below it, in the model's order."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(group(row.module, depth), []).append(row)
    joined = []
    for name, some in groups.items():
        sums = {kind: sum(getattr(row, kind) for row in some) for kind in SUMS}
        joined.append(Row(name, **sums, **{kind: max(getattr(row, kind) for row in some) for kind in HIGHEST}))
    return joined


def group(module: str, depth: int = 2) -> str:
    """Return the first `depth` parts of a module's dotted name."""
    return ".".join(module.split(".")[:depth])


def _segments(blocks: Sequence[Block], begin: int, picked: np.ndarray) -> list[Segment]:
    """Return which part of the model ran from where to where, according to the births; none is shorter than a point."""
    births = sorted(
        (b.born, group(b.module), PHASES.get(b.phase, b.phase)) for b in blocks if b.born >= begin and b.phase
    )
    segments: list[Segment] = []
    for event, module, phase in births:
        at, last = int(np.searchsorted(picked, event - begin)), segments[-1] if segments else None
        if phase in ("optimiser", "outside"):
            module = phase
        elif phase == "backward" and module == OUTSIDE:
            module = last.module if last and last.phase == "backward" else "loss"
        if last and (last.module, last.phase) == (module, phase):
            segments[-1] = Segment(last.start, at, module, phase)
        else:
            segments.append(Segment(last.end if last else 0, at, module, phase))
    return [segment for segment in segments if segment.end > segment.start]


def _rows(blocks: Sequence[Block], begin: int, end: int, total: np.ndarray) -> list[Row]:
    values: defaultdict[str, Counter[str]] = defaultdict(Counter)
    workspace: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)  # by module: events and the change in bytes
    for block in blocks:
        owner, running = values[block.owner or block.module], values[block.module]
        if block.kind in SUMS:
            owner[block.kind] += block.bytes
        elif block.kind == "workspace":
            died = block.died if block.died is not None else end + 1
            workspace[block.module] += [(block.born, block.bytes), (died, -block.bytes)]
        side = "backward" if block.phase in ("backward", "recompute") else "forward"
        if block.born >= begin and block.phase not in ("", "optimizer"):
            running[side] = max(running[side], int(total[block.born - begin]))
    for module, changes in workspace.items():
        values[module]["workspace"] = max(0, *accumulate(size for _, size in sorted(changes)))
    return [Row(module, **figures) for module, figures in values.items()]


# As text


def size(count: float) -> str:
    """Return a number of bytes as text: 1.50 GiB, 12.0 MiB, 3 KiB."""
    sign, count = ("-", -count) if count < 0 else ("", count)
    for unit, amount, digits in (("GiB", 2**30, 2), ("MiB", 2**20, 1), ("KiB", 2**10, 0)):
        if count >= amount * 0.9995:
            return f"{sign}{count / amount:.{digits}f} {unit}"
    return f"{sign}{count:.0f} B"


def peak_text(step: Step) -> str:
    """Return where and of what a step was highest, in one sentence."""
    top = step.peak
    place = f"in {top.module}" if top.module != OUTSIDE else "outside the model"
    when = DURING.get(top.phase, "")
    parts = sorted(((count, name) for name, count in top.parts.items() if count), reverse=True)[:2]
    most = " and ".join(f"{size(count)} of {LABELS[name]}" for count, name in parts)
    operator = f" ({top.op})" if top.op else ""
    return " ".join(f"Tensors peak at {size(top.bytes)} {when} {place}{operator}: {most}.".split())


class Rows(list[Row]):
    """Modules and what each held; shown as the table of it."""

    def __repr__(self) -> str:
        return table_text(self) if self else "[]"


def table_text(rows: Sequence[Row]) -> str:
    """Return what each module held as lines of text, with a head; the last two columns are the most that was alive."""
    names = ("parameters", "buffers", "gradients", "optimizer", "activations", "workspace", "forward", "backward")
    cells = [["module", *names], *([row.module, *(size(getattr(row, name)) for name in names)] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    padded = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in cells)
    return "\n".join("  ".join(row) for row in padded)
