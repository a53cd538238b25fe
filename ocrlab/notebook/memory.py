"""The sections of the memory notebook: one training step, its modules, the processes, what fits.

`memory_job` computes the figures; here they are drawn. What is slow to import is imported where it is used.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from ocrlab.debug.instruments.memory import memory_plot
from ocrlab.debug.instruments.memory.timeline import LABELS, OUTSIDE, size
from ocrlab.notebook import memory_job
from ocrlab.notebook.memory_job import FollowedSteps, MemoryReport
from ocrlab.reports import plots
from ocrlab.reports.html import tables
from ocrlab.reports.view import View

if TYPE_CHECKING:
    from ocrlab.notebook.lab_session import Lab

PARTS = ("parameters", "optimizer", "gradients", "activations", "workspace")


def look(lab: Lab, workers: int, count: int) -> MemoryReport:
    """Follow steps and estimate a training, in a child; raises ConfigError, ChildFailed."""
    title = "Following some steps, estimating a training"
    report: MemoryReport = lab.run(memory_job.look, lab.config, workers, count, title=title)
    return report


def timeline(steps: FollowedSteps) -> View:
    """Return the stacked timeline of the highest step, with the modules named."""
    with plots.styled(height=4.4) as (figure, [axes]):
        description = memory_plot.draw(axes, steps.step)
        plot = plots.finished(figure, f"{description}.")
    crops, pixels = steps.batch
    note = f"A batch of {crops} crops of {pixels} px on {steps.device}. From left to right: births and deaths."
    return View(f'{plot.html}<p class="note">{escape(note)}</p>', f"{steps.finding} {note}")


def modules(steps: FollowedSteps) -> View:
    """Return the table by module: what it holds, and the most that was alive while it ran."""
    rows = [
        (row.module, *(_mib(getattr(row, part)) for part in (*PARTS, "forward", "backward")))
        for row in steps.rows
        if row.module != OUTSIDE and sum(getattr(row, part) for part in PARTS)
    ]
    note = "MiB. Forward and backward: the most that was alive in all while the module ran; workspace: its own."
    return tables.table(("module", *PARTS, "forward", "backward"), rows, steps.finding, note)


def account(steps: FollowedSteps) -> View:
    """Return what the whole process held at the step's peak, from the interpreter to what the allocator keeps free."""
    step, process = steps.step, steps.step.process
    kinds: list[tuple[str, Any]] = [(LABELS[kind], step.peak.parts.get(kind, 0)) for kind in LABELS]
    first = "context, libraries, other processes" if process.cuda else "interpreter and libraries, before the model"
    rest = process.highest - step.peak.bytes - (0 if process.cuda else process.before)
    rows = [(first, process.before), *kinds, ("scratch space inside operators, cached but free", max(0, rest))]
    shown = [(name, size(count)) for name, count in rows if count]
    total = size(sum(count for _, count in rows))
    finding = f"{100 * steps.share:.0f} % of the high-water mark is accounted for, tensor by tensor"
    note = "Scratch space is used inside of convolutions: it belongs to no tensor."
    return tables.table(("at the peak", "held"), [*shown, ("all", total)], finding, note, total=True)


def estimate(lab: Lab, needed: dict[str, Any]) -> View:
    """Return what the whole training will need, part by part, and the batch that would fit into what there is."""
    from ocrlab.debug.memory import memory_limit

    cuda = needed["settled"]["trainer.accelerator"] == "cuda"
    rows = [(name, size(count)) for name, count in needed["parts"].items() if count]
    finding = f"A training with batch_size={lab.config.batch_size} will need {size(needed['peak'])} beyond its imports"
    note = f"Each crop more takes {size(int(needed['slope']))}. "
    if not cuda:
        limit = memory_limit.find_limit(None)
        crops = max(0, int((limit.bytes - needed["offset"]) / max(1.0, needed["slope"])))
        note += f"{size(limit.bytes)} ({limit.source}) would hold about {crops} crops. "
    note += "No step was run for this; `ocrlab memory fit` measures the largest batch in children."
    return tables.table(("part", "estimated"), [*rows, ("all", size(needed["peak"]))], finding, note, total=True)


def processes(steps: FollowedSteps) -> View:
    """Return the memory of the training process and of each loader worker, with shared memory and page cache."""
    every = steps.processes.get("processes", [])
    rows = []
    for use in every:
        sizes = [size(use[key]) if use[key] is not None else "" for key in ("rss", "pss", "private", "shared")]
        rows.append((f"{use['role']} {use['pid']}", *sizes))
    workers = [use for use in every if use["role"] == "worker"]
    whole = steps.processes.get("pss") or steps.processes.get("rss") or 0
    loaders = "its loader worker" if len(workers) == 1 else f"{len(workers)} loader workers"
    finding = f"The training and {loaders} really use {size(whole)}"
    shm, cache, limit = (steps.processes.get(key) for key in ("shm", "cache", "limit"))
    note = f"Shared memory: {size(shm['used'])} of {size(shm['total'])} are in use. " if shm else ""
    note += f"Page cache: {size(cache)}, given up when needed. " if cache else ""
    note += f"The control group allows {size(limit)}." if limit else "No control group sets a limit."
    head = ("process", "resident (RSS)", "its share (PSS)", "private", "shared memory")
    explained = "Resident memory counts a page that two processes share twice; the share does not. "
    return tables.table(head, rows, finding, explained + note)


def judge(lab: Lab, report: MemoryReport) -> None:
    """Judge how much of the process was accounted for."""
    lab.outcome("share of the high-water mark accounted for", report.followed.share, limit=0.75, warn=0.5)


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f}" if count >= 2**20 / 20 else "·"
