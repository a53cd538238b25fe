"""The sections of the memory notebook: one training step, its modules, the processes, a leak with its line.

`memory_child` gives the figures; here they are drawn. What is slow to import is imported where it is used.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from ocrlab.debug.instruments.memory import memory_plot
from ocrlab.debug.instruments.memory.memory_text import size
from ocrlab.debug.instruments.memory.timeline import LABELS, OUTSIDE, Row
from ocrlab.notebook.memory_job import Looked, Planted, Seen
from ocrlab.notebook.memory_job import look as looked
from ocrlab.reports import plots
from ocrlab.reports.html import tables
from ocrlab.reports.view import BAD, LINE, View, say

if TYPE_CHECKING:
    from ocrlab.notebook.lab_session import Lab

__all__ = ["account", "estimate", "judge", "leak", "look", "modules", "processes", "timeline"]

CSS = f"""
.ocrlab pre.program {{ font: 12.5px/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; margin: 6px 0;
  padding: 10px 0; border: 1px solid {LINE}; border-radius: 4px; overflow-x: auto; background: none; color: inherit; }}
.ocrlab pre.program span {{ display: block; padding: 0 14px; white-space: pre; }}
.ocrlab pre.program b {{ display: inline-block; width: 2.2em; font-weight: 400; opacity: .78; }}
.ocrlab pre.program span.held {{ background: color-mix(in srgb, {BAD} 16%, transparent);
  box-shadow: inset 3px 0 {BAD}; font-weight: 600; }}
.ocrlab table.tight.tight td, .ocrlab table.tight.tight th {{ padding-right: 13px; font-size: 13px; }}
.ocrlab .bar {{ display: inline-block; height: 9px; border-radius: 2px; vertical-align: middle; margin-right: 1px; }}
"""
BARS = ("parameters", "optimizer", "gradients", "activations", "workspace")
AROUND = 6  # lines of a program shown around the guilty one


def look(lab: Lab, workers: int, count: int, leak: str) -> Looked:
    """Follow steps, estimate a training and plant a leak, all in a child; raises ConfigError, ChildFailed."""
    found: Looked = lab.run(
        looked, lab.config, workers, count, leak, title="Following some steps, estimating a training, planting a leak"
    )
    return found


def timeline(found: Seen) -> View:
    """Return the stacked timeline of the highest step, with the modules named."""
    import matplotlib

    with matplotlib.rc_context(plots.STYLE):
        figure, [axes] = plots.blank(height=4.4)
        told = memory_plot.draw(axes, found.step)
        plot = plots.finished(figure, f"{told}.")
    crops, pixels = found.batch
    note = f"A batch of {crops} crops of {pixels} px on {found.device}. From left to right: births and deaths."
    return View(f'{plot.html}<p class="note">{escape(note)}</p>', f"{found.finding} {note}")


def modules(found: Seen) -> View:
    """Return the table by module: what it holds, the most that was alive while it ran, and a bar of its parts."""
    rows = [row for row in found.rows if row.module != OUTSIDE and _whole(row)]
    top = max((_whole(row) for row in rows), default=1)
    names = ("parameters", "optimiser", "gradients", "activations", "workspace", "forward", "backward")
    head = ["module", *names, ""]
    cells = "".join(f'<th class="{"words" if i in (0, 8) else ""}">{escape(text)}</th>' for i, text in enumerate(head))
    body = [f"<tr>{cells}</tr>"]
    peak = max((row.backward for row in rows), default=0), max((row.forward for row in rows), default=0)
    for row in rows:
        figures = [_mib(getattr(row, kind)) for kind in BARS]
        highs = [_marked(row.forward, max(peak)), _marked(row.backward, max(peak))]
        parts = "".join(_bar(row, kind, top) for kind in BARS)
        told = "".join(f"<td>{cell}</td>" for cell in (*figures, *highs))
        body.append(f'<tr><td class="words">{escape(row.module)}</td>{told}<td class="words">{parts}</td></tr>')
    legend = "MiB. Forward and backward: the most that was alive in all while the module ran; workspace: its own."
    table = f'<div class="wide"><table class="plain tight">{"".join(body)}</table></div>'
    html = f"<style>{tables.CSS}{CSS}</style>{say(found.finding)}{table}"
    lines = [found.finding, *(f"{row.module}: {size(_whole(row))}" for row in rows)]
    return View(f'{html}<p class="note">{escape(legend)}</p>', "\n".join(lines))


def account(found: Seen) -> View:
    """Return what the whole process held at the step's peak, from the interpreter to what the allocator keeps free."""
    step, seen = found.step, found.step.process
    kinds: list[tuple[str, Any]] = [(LABELS[kind], step.peak.parts.get(kind, 0)) for kind in LABELS]
    first = "context, libraries, other processes" if seen.cuda else "interpreter and libraries, before the model"
    rest = seen.highest - step.peak.bytes - (0 if seen.cuda else seen.before)
    rows = [(first, seen.before), *kinds, ("scratch space inside operators, cached but free", max(0, rest))]
    shown = [(name, size(count)) for name, count in rows if count]
    total = size(sum(count for _, count in rows))
    finding = f"{100 * found.share:.0f} % of the high-water mark are accounted for, tensor by tensor"
    note = "Scratch space is what convolutions use inside themselves: no tensor stands for it."
    note += f" The high-water mark last rose in {seen.where}." if seen.where else ""
    note = f"{note} {found.summary}" if seen.cuda else note
    return tables.table(("at the peak", "held"), [*shown, ("all", total)], finding, note, total=True)


def estimate(lab: Lab, found: dict[str, Any]) -> View:
    """Return what the whole training will need, part by part, and the batch that would fit into what there is."""
    from ocrlab.debug.memory import memory_limit

    cuda = found["settled"]["trainer.accelerator"] == "cuda"
    rows = [(name, size(count)) for name, count in found["parts"].items() if count]
    finding = f"A training with batch_size={lab.config.batch_size} will need {size(found['peak'])} beyond its imports"
    note = f"Each crop more takes {size(int(found['slope']))}. "
    if not cuda:
        limit = memory_limit.find_limit(None)
        crops = max(0, int((limit.bytes - found["offset"]) / max(1.0, found["slope"])))
        note += f"{size(limit.bytes)} ({limit.source}) would hold about {crops} crops. "
    note += "No step was made for this; `ocrlab memory fit` measures the largest batch in children."
    return tables.table(("part", "estimated"), [*rows, ("all", size(found["peak"]))], finding, note, total=True)


def processes(found: Seen) -> View:
    """Return the memory of the training process and of each loader worker, with shared memory and page cache."""
    every = found.processes.get("processes", [])
    rows = []
    for use in every:
        told = [size(use[key]) if use[key] is not None else "" for key in ("rss", "pss", "private", "shared")]
        rows.append((f"{use['role']} {use['pid']}", *told))
    workers = [use for use in every if use["role"] == "worker"]
    whole = found.processes.get("pss") or found.processes.get("rss") or 0
    finding = f"The training and {len(workers)} loader workers really use {size(whole)}"
    if len(workers) == 1:
        finding = f"The training and its loader worker really use {size(whole)}"
    shm, cache, limit = (found.processes.get(key) for key in ("shm", "cache", "limit"))
    note = f"Shared memory: {size(shm['used'])} of {size(shm['total'])} are in use. " if shm else ""
    note += f"Page cache: {size(cache)}, given up when needed. " if cache else ""
    note += f"The control group allows {size(limit)}." if limit else "No control group sets a limit."
    head = ("process", "resident (RSS)", "its share (PSS)", "private", "shared memory")
    explained = "Resident memory counts a page that two processes share twice; the share does not. "
    return tables.table(head, rows, finding, explained + note)


def leak(found: Planted) -> View:
    """Return the program with the line that was found, and what was said of it."""
    told = found.leaks[0] if found.leaks else None
    number = int(told.location.rpartition(":")[2] or 0) if told else 0
    finding = "No leak was found"
    if told:
        words = told.holder.partition(" of ")[0]
        finding = f"{told.mib_per_step:.2f} MiB a step are kept by {words}, line {number}"
    lines = found.program.splitlines()
    low, high = max(0, number - AROUND), min(len(lines), number + AROUND - 3) if number else len(lines)
    shown = "".join(
        f'<span class="{"held" if at == number else ""}"><b>{at}</b>{escape(text) or " "}</span>'
        for at, text in enumerate(lines[low:high], low + 1)
    )
    note = f"{told.fix}. Found after {told.steps} steps." if told else f"{found.ticks} steps were looked at."
    if told and told.origin:
        note = f"What is kept was made at line {told.origin.rpartition(':')[2]}. {note}"
    html = f'<style>{CSS}</style>{say(finding)}<pre class="program">{shown}</pre><p class="note">{escape(note)}</p>'
    return View(html, f"{finding}. {note}")


def judge(lab: Lab, found: Looked) -> None:
    """Judge how much of the process was accounted for, and whether the planted leak was found with its line."""
    lab.outcome("share of the high-water mark accounted for", found.seen.share, limit=0.75, warn=0.5)
    lab.outcome("share of planted leaks found with their line", float(found.planted.right), limit=1.0)


def _whole(row: Row) -> int:
    return sum(int(getattr(row, kind)) for kind in BARS)


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f}" if count >= 2**20 / 20 else "·"


def _marked(count: int, highest: int) -> str:
    return f"<b>{_mib(count)}</b>" if count == highest else _mib(count)


def _bar(row: Row, kind: str, top: int) -> str:
    width = 96 * getattr(row, kind) / top
    colour = memory_plot.COLOURS[kind]
    return f'<i class="bar" style="width:{width:.0f}px;background:{colour}"></i>' if width >= 1 else ""
