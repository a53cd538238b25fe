"""Memory as text: the peak of a step, and what torch.cuda.memory_summary() means; plain data in, text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ocrlab.debug.instruments.memory.timeline import LABELS, OUTSIDE, Row, Step

DURING = {
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "recompute": "while recomputing",
    "evaluation": "in evaluation",
    "optimizer": "in the optimiser",
}
ROUND = 0.02  # of the allocated bytes, below which a share is not worth a sentence
SPLIT = 0.1  # of the reserved bytes, from which fragmentation is worth a sentence


def size(count: float) -> str:
    """Return a number of bytes as text: 1.50 GiB, 12.0 MiB, 3 KiB."""
    sign, count = ("-", -count) if count < 0 else ("", count)
    for unit, amount, digits in (("GiB", 2**30, 2), ("MiB", 2**20, 1), ("KiB", 2**10, 0)):
        if count >= amount * 0.9995:
            return f"{sign}{count / amount:.{digits}f} {unit}"
    return f"{sign}{count:.0f} B"


def peak(step: Step) -> str:
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
        return table(self) if self else "[]"


def table(rows: Sequence[Row]) -> str:
    """Return what each module held as lines of text, with a head; the last two columns are the most that was alive."""
    names = ("parameters", "buffers", "gradients", "optimizer", "activations", "workspace", "forward", "backward")
    cells = [["module", *names], *([row.module, *(size(getattr(row, name)) for name in names)] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    padded = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in cells)
    return "\n".join("  ".join(row) for row in padded)


def summary(stats: Mapping[str, float], more: Mapping[str, float] | None = None) -> str:
    """Return the figures of `torch.cuda.memory_stats()` as sentences, most important first.

    `more` is what `memory.allocator()` adds: largest_free, free, total, outside. Any key may be missing, as the keys
    differ between versions and back ends.
    """
    more = more or {}

    def figure(name: str) -> float:
        return float(stats.get(name, 0) or 0)

    now, most = figure("allocated_bytes.all.current"), figure("allocated_bytes.all.peak")
    reserved, split = figure("reserved_bytes.all.current"), figure("inactive_split_bytes.all.current")
    cached = max(0.0, reserved - now)
    most_reserved = size(figure("reserved_bytes.all.peak"))
    use = f"{size(cached)} of it are cached for the next tensors, which nvidia-smi counts as used"
    use = "nearly all of it is in use" if cached <= ROUND * max(reserved, 1) else use
    lines = [f"Tensors hold {size(now)}; at most it was {size(most)}."]
    lines.append(f"The allocator has taken {size(reserved)} from the driver (at most {most_reserved}); {use}.")
    if reserved and split > SPLIT * reserved:
        line = f"{size(split)} of it lie in holes between tensors and can be used for smaller ones only"
        line += f"; the largest free piece is {size(more['largest_free'])}" if "largest_free" in more else ""
        lines.append(f"{line}. That is fragmentation: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True avoids it.")
    elif "largest_free" in more:
        lines.append(f"The largest piece that is free without asking the driver is {size(more['largest_free'])}.")
    if more.get("total"):
        rest = f"The device has {size(more['total'])}; {size(more.get('free', 0))} are free"
        lines.append(f"{rest}, and {size(more.get('outside', 0))} belong to the context, libraries and others.")
    ooms, retries = int(figure("num_ooms")), int(figure("num_alloc_retries"))
    if ooms:
        lines.append(f"Out of memory {ooms} {'time' if ooms == 1 else 'times'}.")
    if retries:
        times = "Once" if retries == 1 else f"{retries} times"
        lines.append(f"{times} it had to give its whole cache back and ask again, which is slow: this is at the limit.")
    if oversize := figure("oversize_allocations.current"):
        lines.append(f"{oversize:.0f} tensors are larger than max_split_size_mb allows to be split.")
    return "\n".join(lines)
