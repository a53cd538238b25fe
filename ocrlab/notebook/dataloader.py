"""The sections of the loader's notebook: waiting and computing, workers, slow samples, the settings.

`dataloader_job` computes the figures; here they are drawn. What is slow to import is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from ocrlab.notebook.dataloader_job import LoaderReport, measure_loading
from ocrlab.redaction import clean
from ocrlab.reports import plots
from ocrlab.reports.html import tables
from ocrlab.reports.view import ACCENT, BAD, GOOD, INK, MUTED, View, heading

if TYPE_CHECKING:
    from ocrlab.notebook.lab_session import Lab

SHOWN_STEPS = 120  # steps that are drawn; of more, the last ones


def look(lab: Lab, workers: Sequence[int], threads: Sequence[int], seconds: float, turns: int) -> LoaderReport:
    """Watch and measure a training in a child of the notebook; raises ConfigError, ChildFailed."""
    title = f"Training {lab.config.encoder} + {lab.config.decoder} under watch, then with other settings"
    counts = (list(workers), list(threads))
    report: LoaderReport = lab.run(measure_loading, lab.config, *counts, seconds, turns, title=title)
    lab.next = command(report)[0]
    return report


def waiting(report: LoaderReport) -> View:
    """Return how long each step waited for its data and how long it computed."""
    steps = [step for step in report.steps if step["compute"] is not None][-SHOWN_STEPS:]
    compute, wait = ([1000 * step[name] for step in steps] for name in ("compute", "wait"))
    with plots.styled(height=2.9) as (figure, [axes]):
        numbers = range(1, len(steps) + 1)
        axes.bar(numbers, compute, color=ACCENT, width=0.82, label="computing")
        axes.bar(numbers, wait, bottom=compute, color=BAD, width=0.82, label="waiting for data")
        axes.set(xlabel="step", ylabel="milliseconds")
        plots.counted(axes)
        axes.grid(axis="x", visible=False)
        top = 4 * sorted(compute)[len(compute) // 2] if compute else 1.0
        if any(a + b > top for a, b in zip(wait, compute, strict=True)):
            axes.set_ylim(0, top)
            style: dict[str, Any] = {"xycoords": "axes fraction", "ha": "right", "fontsize": 8, "color": MUTED}
            axes.annotate("higher ones are cut off", (1, 1), **style)
        axes.legend(ncols=2, loc="upper left", bbox_to_anchor=(0, 1.16), borderaxespad=0)
        plot = plots.finished(figure, f"{report.finding}. Bars of {len(steps)} steps.")
    more = "".join(f'<p class="note">{escape(text)}.</p>' for text in report.more)
    return View(f"{heading(report.finding)}{plot.html}{more}", "\n".join([report.finding, *report.more]))


def workers(report: LoaderReport) -> View:
    """Return what each process that loads did, and what it holds in memory."""
    head = ["process", "samples", "samples a second", "busy", "on a core", "threads"]
    head += ["resident MB", "its own MB", "growth MB"]
    rows = []
    for row in report.workers:
        sizes = [None if row[key] is None else round(row[key]) for key in ("rss_mb", "private_mb", "growth_mb")]
        shares = [percent(row[key]) for key in ("busy", "on_cpu")]
        rows.append((str(row["worker"]), row["samples"], row["samples_per_second"], *shares, row["threads"], *sizes))
    count = sum(row["worker"] != "main" for row in report.workers)
    what = f"{count} workers load" if count else "The training process loads in line; there is no worker"
    growths = [row["growth_mb"] for row in report.workers if row["growth_mb"] is not None]
    memory = f"memory grew by {max(growths):.0f} MB" if growths and max(growths) >= 1 else "memory does not grow"
    note = "Busy: share of its life in samples. On a core: else it waits for disk, network, a lock or a core."
    return tables.table(head, rows, f"{what}; {memory}" if growths else what, note)


def slowest(report: LoaderReport) -> View:
    """Return the samples that took longest, and what each did meanwhile."""
    rows = [(row["sample"], f"{1000 * row['seconds']:.0f} ms", row["times"], row["doing"]) for row in report.slowest]
    worst = report.slowest[0]["times"] if report.slowest else 1.0
    finding = "No sample is slow: the slowest takes" if worst < 5 else "Some samples are slow: the slowest takes"
    return tables.table(("sample", "took", "times the median", "it"), rows, f"{finding} {worst:.1f} times the median")


def recommended(report: LoaderReport) -> View:
    """Return the settings that were tried with the spread of their turns, and the line that sets the best."""
    rows = [row for row in report.trials if row["step_ms"] is not None]
    with plots.styled(height=0.9 + 0.42 * max(1, len(rows))) as (figure, [axes]):
        for at, row in enumerate(rows):
            key = (row["workers"], row["threads"])
            colour = GOOD if key == report.best else INK if key == report.used else MUTED
            axes.plot([row["low_ms"], row["high_ms"]], [at, at], color=colour, linewidth=5, alpha=0.35)
            axes.plot([row["step_ms"]], [at], "o", color=colour, markersize=8)
            marks = {"best": report.best, "in use": report.used}
            text = " · ".join([f"{row['step_ms']:.0f} ms", *(word for word, marked in marks.items() if marked == key)])
            place: dict[str, Any] = {"xytext": (9, -3.5), "textcoords": "offset points"}
            axes.annotate(text, (row["high_ms"], at), **place, fontsize=9, color=colour)
        axes.set_yticks(range(len(rows)), [_setting(row) for row in rows])
        right = 1.3 * max((row["high_ms"] for row in rows), default=1.0)
        label = "milliseconds a step; dot: median of the turns, band: all of them"
        axes.set(ylim=(len(rows) - 0.4, -0.6), xlim=(0, right), xlabel=label)
        axes.grid(axis="y", visible=False)
        plot = plots.finished(figure, f"{report.recommended}. {len(rows)} settings were tried.")
    broken = [row for row in report.trials if row["step_ms"] is None]
    texts = [*(f"{_setting(row)} failed: {clean(row['error'])}" for row in broken), "To set it:"]
    notes = "".join(f'<p class="note">{escape(text)}</p>' for text in texts)
    lines = command(report)
    commands = "".join(f"<p><code>{escape(line)}</code></p>" for line in lines)
    return View(f"{heading(report.recommended)}{plot.html}{notes}{commands}", "\n".join([report.recommended, *lines]))


def judge(lab: Lab, report: LoaderReport, limit: float) -> None:
    """Judge the speed of the settings in use against the best that was measured."""
    unit = "of the best measured"
    lab.outcome("speed of the settings in use", report.speed, limit=limit, warn=2 / 3 * limit, unit=unit)


def command(report: LoaderReport) -> list[str]:
    """Return the lines that set the recommended settings: of ocrlab, and of anybody's loop."""
    count, threads = report.best
    return [
        f"ocrlab train runtime.workers={count} runtime.threads={threads}",
        f"DataLoader(..., num_workers={count}); torch.set_num_threads({threads})",
    ]


def _setting(row: Mapping[str, int]) -> str:
    """Return the workers and threads of a trial in words."""
    workers, threads = row["workers"], row["threads"]
    first = f"{workers} worker{'' if workers == 1 else 's'}" if workers else "no worker"
    return f"{first}, {threads} thread{'' if threads == 1 else 's'}"


def percent(share: float | None) -> str:
    """Return a share as text, "" where it is unknown."""
    return "" if share is None else f"{100 * share:.0f} %"
