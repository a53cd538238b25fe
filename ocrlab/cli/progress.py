"""Progress on stderr: a bar in a terminal, else a line now and then, so that a log stays readable."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ocrlab.errors import escape_control
from ocrlab.reports.progress_view import duration

if TYPE_CHECKING:
    from rich.progress import Progress

LINE_EVERY = 30.0  # seconds between two lines of a log
FIGURES = {"loss": "loss {:.3f}", "hmean@0.5": "hmean@0.5 {:.3f}", "images_per_second": "{:.1f} images/s"}
LABELS = {"start": "training", "train": "training", "validate": "training", "measure": "measuring"}

Event = dict[str, Any]


@contextlib.contextmanager
def page_progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """Yield `tick(done, total)` that shows how many pages are done."""
    with training_progress() as show:
        yield lambda done, total: show({"kind": label, "step": done, "total": total})


@contextlib.contextmanager
def training_progress() -> Iterator[Callable[[Event], None]]:
    """Yield `show(event)` for events {"kind", "step", "total", figures...} and {"kind": "warning", "text"}."""
    from rich import progress as rich_progress
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _lines()
        return
    columns = [rich_progress.TextColumn("{task.description}", markup=False), rich_progress.BarColumn()]
    columns += [rich_progress.MofNCompleteColumn(), rich_progress.TimeElapsedColumn()]
    with rich_progress.Progress(*columns, rich_progress.TimeRemainingColumn(), console=console) as bar:
        yield _bar(bar)


def _bar(bar: Progress) -> Callable[[Event], None]:
    tasks: dict[str, Any] = {}
    figures: Event = {}

    def show(event: Event) -> None:
        if event["kind"] == "warning":
            bar.console.print(escape_control(event["text"]), style="yellow", markup=False, highlight=False)
        elif "step" in event and event["kind"] != "end":
            label = str(LABELS.get(event["kind"], event["kind"]))
            figures.update({name: event[name] for name in FIGURES if name in event})
            if label not in tasks:
                tasks[label] = bar.add_task(label)
            text = _description(label, figures if label == LABELS["train"] else {})
            bar.update(tasks[label], completed=event["step"], total=event["total"], description=text)

    return show


def _lines() -> Callable[[Event], None]:
    last = -LINE_EVERY
    began: dict[str, tuple[float, int]] = {}  # of each label: when, and at which step
    done: set[str] = set()  # labels whose last step was shown

    def show(event: Event) -> None:
        nonlocal last
        if event["kind"] == "warning":
            print(escape_control(event["text"]), file=sys.stderr, flush=True)
        if "step" not in event or event["kind"] in ("warning", "end"):
            return
        label, step, total = str(LABELS.get(event["kind"], event["kind"])), event["step"], event["total"]
        ends = step >= total and label not in done  # however short: the log must show it
        if ends or event["kind"] == "validate" or time.monotonic() - last >= LINE_EVERY:
            done.update([label] if ends else [])
            last = time.monotonic()
            start, first = began.setdefault(label, (last, step))
            line = f"{_description(label, event)}: {step}/{total}"
            if first < step < total:
                line += f", about {duration((last - start) / (step - first) * (total - step))} left"
            print(line, file=sys.stderr, flush=True)

    return show


def _description(label: str, figures: Event) -> str:
    return " ".join([label, *(form.format(figures[name]) for name, form in FIGURES.items() if name in figures)])
