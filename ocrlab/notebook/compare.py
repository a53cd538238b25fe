"""The sections of the comparing notebook: what differs, the curves, the difference with its interval, and the pages.

`compare_job` gives the pages as every run's detector sees them; here they are drawn.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from ocrlab.evaluation.metrics.page_scores import AT
from ocrlab.evaluation.metrics.paired_comparison import PairedDifference, by_page, counts, level
from ocrlab.evaluation.metrics.paired_comparison import compare as paired
from ocrlab.notebook import compare_job
from ocrlab.notebook.compare_job import ComparedPage, Comparison, PageResult, Polygons
from ocrlab.redaction import clean
from ocrlab.reports import plots
from ocrlab.reports.html import page_images, tables
from ocrlab.reports.html.page_images import Layer
from ocrlab.reports.run_history import query, run_list
from ocrlab.reports.view import BAD, GOOD, IGNORED, INK, MISSED, MUTED, View, heading, join_views

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ocrlab.notebook.lab_session import Lab

SHOWN, SMALL = 2, 360  # pages drawn in a report that got worse, and better; width of a page in pixels of the screen
WIDE = 44  # characters of a title above half a figure
NAMED = 12  # pages in the bars that get their name


def look(lab: Lab, places: Sequence[str], pages: int) -> Comparison:
    """Return runs on the same pages, judged in a watched child; raises RunError, DataError, ChildFailed."""
    data = str(lab.parameters.get("data") or "")
    title = "Judging the runs on the same pages" if places else "Two short trainings, then both on the same pages"
    comparison: Comparison = lab.run(compare_job.compare, lab.config, list(places), data, pages, title=title)
    lab.next = f"ocrlab runs {clean(str(comparison.runs[0]))} {clean(str(comparison.runs[-1]))}"
    return comparison


def letter(number: int) -> str:
    """Return the short name of a run: A is what the others are compared with."""
    return chr(ord("A") + number) if number < 26 else f"R{number}"


def settings(comparison: Comparison) -> View:
    """Return the runs, how each ended, and the settings in which they differ."""
    runs = [run for folder in comparison.runs if (run := run_list.read(str(folder)))]
    rows: list[list[object]] = [
        ["folder", *(run.name for run in runs)],
        ["ended", *(run.status for run in runs)],
        ["hmean@0.5 in its own record", *("" if run.hmean is None else f"{run.hmean:.4f}" for run in runs)],
        ["steps", *(f"{run.metrics.get('steps', 0):g}" for run in runs)],
        ["seconds", *("" if run.seconds is None else f"{run.seconds:.0f}" for run in runs)],
    ]
    keys = query.differing_settings(runs)
    for key in keys:
        rows.append([key, *(clean(query.format_value(query.value(run, key))) for run in runs)])
    several = f"{len(keys)} settings differ" if len(keys) != 1 else f"One setting differs: {keys[0]}"
    finding = several if keys else "No setting differs: what differs is chance, or the code"
    head = ["", *(letter(number) for number in range(len(runs)))]
    return tables.table(head, rows, finding, ". ".join(clean(note) for note in comparison.notes))


def curves(comparison: Comparison) -> View:
    """Return loss over steps and hmean over training time, one line a run."""
    rows: list[list[dict[str, float]]] = []
    for folder in comparison.runs:
        try:
            rows.append(plots.read_metrics(folder / "metrics.csv"))
        except (OSError, ValueError):  # it was started from elsewhere, or its table is torn
            rows.append([])
    with plots.styled(2, height=3.7) as (figure, (left, right)):
        titles = [
            _lines(left, rows, "loss", "step", "optimizer step", "loss"),
            _lines(right, rows, "hmean@0.5", "fit_seconds", "seconds in training", "hmean@0.5 of its own validation"),
        ]
        plots.counted(left)
        losses = [row["loss"] for run_rows in rows for row in run_rows if row.get("loss", 0) > 0]
        if losses and max(losses) > 10 * min(losses):  # else a logarithmic axis has no number on it
            left.set(yscale="log", ylabel="loss, log scale")
            left.yaxis.set_major_formatter("{x:g}")
            left.yaxis.set_minor_formatter("")
        right.set_ylim(0, 1)
        return plots.finished(figure, ". ".join(titles) + ".")


def _lines(axes: Axes, runs: Sequence[Sequence[dict[str, float]]], name: str, along: str, x: str, y: str) -> str:
    """Draw one figure of every run and return its title."""
    ends, pages = [], set()  # of a validation, which may be fewer than those that are compared
    for number, (rows, colour) in enumerate(zip(runs, itertools.cycle(plots.COLOURS), strict=False)):
        points, last = [], math.nan
        for row in rows:  # the last validation of a run may be written without its time
            last = row.get(along, last)
            if name in row and last == last:
                points.append((last, row[name]))
                pages |= {round(row["pages"])} if row.get("pages", 0) > 0 else set()
        if points:
            marker = "o" if len(points) < 12 else ""
            axes.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=4, label=letter(number))
            ends.append(f"{letter(number)} {points[-1][1]:.3g}")
    on = f" on {' and '.join(map(str, sorted(pages)))} pages" if pages else ""
    title = f"{name}{on or ' at the end'}: {', '.join(ends)}" if ends else f"No run has a {name}"
    axes.set(xlabel=x, ylabel=y, title=textwrap.fill(title, WIDE))
    if ends:
        axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.18))
    return title


def differences(comparison: Comparison, number: int) -> dict[str, PairedDifference]:
    """Return how a run differs from the first one in hmean at each IoU, by bootstrap over the same pages.

    Of several runs each is compared with the first, and the intervals hold together.
    """
    among = len(comparison.runs) - 1
    first, other = ([counts(page.results[run].scores) for page in comparison.pages] for run in (0, number))
    return {at: paired([sums[at] for sums in first], [sums[at] for sums in other], among=among) for at in AT}


def sentence(name: str, difference: PairedDifference) -> str:
    """Return a difference in hmean@0.5 in words; "cannot tell" is one of them."""
    if math.isnan(difference.low):
        few = f"{name}: {difference.pages} pages are too few to tell whether"
        return f"{few} a difference of {difference.difference:+.3f} is chance"
    interval = f"{difference.difference:+.4f} [{difference.low:+.4f}, {difference.high:+.4f}], p {_p(difference.p)}"
    if difference.verdict == "cannot tell":
        return f"{name}: cannot tell on {difference.pages} pages; the difference in hmean@0.5 is {interval}"
    return f"{name} is {difference.verdict} than A in hmean@0.5: {interval}, {difference.pages} pages"


def real(comparison: Comparison) -> View:
    """Return the differences with their intervals, as a plot and as a table."""
    by_run = {letter(n): differences(comparison, n) for n in range(1, len(comparison.runs))}
    entries = [(f"{name} − A, hmean{at}", d) for name, all_of in by_run.items() for at, d in all_of.items()]
    findings = [sentence(name, all_of["@0.5"]) for name, all_of in by_run.items()]
    rows = []
    with plots.styled(height=1.0 + 0.34 * len(entries)) as (figure, [axes]):
        for place, (name, d) in zip(reversed(range(len(entries))), entries, strict=True):
            colour = {"better": GOOD, "worse": BAD}.get(d.verdict, MUTED)
            ends = ("", "", "") if math.isnan(d.low) else (f"{d.low:+.4f}", f"{d.high:+.4f}", _p(d.p))
            axes.plot([d.low, d.high], [place, place], color=colour, linewidth=3, solid_capstyle="butt")
            axes.plot([d.difference], [place], color=colour, marker="o", markersize=6)
            rows.append((name, f"{d.first:.4f}", f"{d.second:.4f}", f"{d.difference:+.4f}", *ends, d.verdict))
        axes.axvline(0, color=INK, linewidth=1)
        axes.set_yticks(range(len(entries)), [name for name, _ in reversed(entries)])
        axes.set(ylim=(-0.6, len(entries) - 0.4), xlabel="difference; right of the line: better than A")
        axes.grid(axis="y", visible=False)
        plot = plots.finished(figure, ". ".join(findings) + ".")
    among = len(by_run)
    head = ("", "A", "other", "difference", f"{100 * level(among):.3g} % from", "to", "p", "")
    pages_text = f"{len(comparison.pages)} pages of {clean(comparison.data)}, split {comparison.split}"
    note = f"Paired bootstrap over {pages_text}, 10,000 draws. It does not show how much another seed would change."
    if among > 1:
        note += f" {among} runs are compared with A, so each interval is wider: at each IoU all of them hold in 95 %."
    finding = View(heading("; ".join(findings)), "; ".join(findings))
    return join_views([finding, plot, tables.table(head, rows, "In figures", note)])


def _p(value: float) -> str:
    return "below 0.001" if value < 0.001 else f"{value:.3f}"


def pages(comparison: Comparison, number: int = -1) -> View:
    """Return the pages that got better and worse from the first run to another, as bars; and the worst as pictures."""
    number %= len(comparison.runs)
    order = by_page(*([page.results[run].hmean for page in comparison.pages] for run in (0, number)))
    ranked = [comparison.pages[at] for at in order]  # the one that got worst first
    gains = [gain(page, number) for page in ranked]
    worse, better = sum(value < 0 for value in gains), sum(value > 0 for value in gains)
    title = f"{letter(number)} against A: {better} pages better, {worse} worse, {len(gains) - better - worse} the same"
    with plots.styled(height=2.6) as (figure, [axes]):
        axes.bar(range(len(gains)), gains, color=[GOOD if value > 0 else BAD for value in gains], width=0.85)
        axes.axhline(0, color=INK, linewidth=1)
        axes.set(title=title, xlabel="pages, the one that got worst first", ylabel="gain in hmean@0.5 of a page")
        axes.grid(axis="x", visible=False)
        if len(gains) <= NAMED * 2:
            axes.set_xticks(
                range(len(gains)), [clean(page.name) for page in ranked], rotation=45, ha="right", fontsize=7
            )
        views = [plots.finished(figure, title)]
    for name, some in (("Worst regressions", ranked[:SHOWN]), ("Largest gains", ranked[::-1][:SHOWN])):
        some = [page for page in some if gain(page, number) * (-1 if name.startswith("Worst") else 1) > 0]
        layers = [outlines(page, number) for page in some]
        pictures = [_picture(comparison, *pair, number) for pair in zip(some, layers, strict=True)]
        values = ", ".join(f"{gain(page, number):+.2f}" for page in some) or "none"
        views.append(page_images.row(f"{name}: {values}", pictures, page_images.legend(layers)))
    return join_views(views)


def gain(page: ComparedPage, number: int) -> float:
    """Return by how much a page's hmean@0.5 is higher than in the first run."""
    return page.results[number].hmean - page.results[0].hmean


def outlines(page: ComparedPage, number: int) -> list[Layer]:
    """Return what both runs find on a page: text that only one of them finds, and what only the other got wrong."""

    def wrong(result: PageResult) -> Polygons:
        right = {d for _, d in result.scores.iou.pairs[0.5]}
        counted = result.scores.iou.detection_counts
        return [polygon for d, polygon in enumerate(result.polygons) if d not in right and counted[d]]

    first, other, name = page.results[0], page.results[number], letter(number)
    before, after = (dict(result.scores.iou.pairs[0.5]) for result in (first, other))
    truth = list(enumerate(zip(page.polygons, page.ignored, strict=True)))
    missed = [polygon for t, (polygon, skip) in truth if not skip and t not in before and t not in after]
    return [
        Layer("ignored", [polygon for _, (polygon, skip) in truth if skip], IGNORED, "2 3", 0.15),
        Layer("found by both", [other.polygons[d] for t, d in after.items() if t in before], MUTED),
        Layer("found by A only", [first.polygons[d] for t, d in before.items() if t not in after], MISSED, "6 3", 0.2),
        Layer(f"found by {name} only", [other.polygons[d] for t, d in after.items() if t not in before], GOOD, "", 0.2),
        Layer("found by neither", missed, INK, "1 3"),
        Layer(f"wrong in {name}", wrong(other), BAD, "", 0.15),
        Layer("wrong in A", wrong(first), BAD, "3 3"),
    ]


def _picture(comparison: Comparison, page: ComparedPage, layers: Sequence[Layer], number: int) -> str:
    from ocrlab.data.image_io import read_image

    scores = f"hmean@0.5 {page.results[0].hmean:.2f} in A, {page.results[number].hmean:.2f} in {letter(number)}"
    image, name = read_image(page.image, exif=comparison.exif), clean(page.name)
    caption = f"<b>{escape(name)}</b> · {scores}"
    return page_images.picture(image, f"page {name}: {scores}", layers, caption, width=SMALL)


def judge(lab: Lab, comparison: Comparison) -> None:
    """Judge each run against the first: PASS if it is certainly better, FAIL if worse, else WARN."""
    for number in range(1, len(comparison.runs)):
        difference = differences(comparison, number)["@0.5"]
        value = 0.5 if math.isnan(difference.ahead) else difference.ahead
        sure = (1 + level(len(comparison.runs) - 1)) / 2  # of the draws on one side: so does the interval
        lab.outcome(f"share of draws in which {letter(number)} is ahead of A", value, sure, 1 - sure)
