"""The sections of the comparing notebook: what differs, the curves, the difference with its interval, and the pages.

`compare_job` gives the pages as every run's detector sees them; here they are drawn.
"""

from __future__ import annotations

import importlib
import itertools
import math
import textwrap
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocrlab.evaluation.metrics.page_scores import AT
from ocrlab.evaluation.metrics.paired_comparison import PairedDifference, by_page, level
from ocrlab.evaluation.metrics.paired_comparison import compare as paired
from ocrlab.notebook import compare_job
from ocrlab.notebook.compare_job import ComparedPage, Comparison
from ocrlab.redaction import clean
from ocrlab.reports import plots
from ocrlab.reports.html import page_images, tables
from ocrlab.reports.html.page_images import Layer
from ocrlab.reports.run_history import query, run_list
from ocrlab.reports.view import BAD, GOOD, IGNORED, INK, MISSED, MUTED, View, WidgetView, heading, join_views

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
    newest = comparison.runs[-1]
    lab.next = f"ocrlab runs {clean(str(comparison.runs[0]))} {clean(str(newest))}"
    return comparison


def letter(number: int) -> str:
    """Return the short name of a run: A is what the others are compared with."""
    return chr(ord("A") + number) if number < 26 else f"R{number}"


def settings(comparison: Comparison) -> View:
    """Return the runs, how each ended, and the settings in which they differ."""
    runs = [run for folder in comparison.runs if (run := run_list.read(str(folder)))]
    rows: list[list[object]] = [["folder", *(run.name for run in runs)], ["ended", *(run.status for run in runs)]]
    rows.append(["hmean@0.5, as it said itself", *("" if run.hmean is None else f"{run.hmean:.4f}" for run in runs)])
    rows.append(["steps", *(f"{run.metrics.get('steps', 0):g}" for run in runs)])
    rows.append(["seconds", *("" if run.seconds is None else f"{run.seconds:.0f}" for run in runs)])
    keys = query.differing_settings(runs)
    for key in keys:
        rows.append([key, *(clean(query.format_value(query.value(run, key))) for run in runs)])
    several = f"{len(keys)} settings differ" if len(keys) != 1 else f"One setting differs: {keys[0]}"
    finding = several if keys else "No setting differs: what differs is chance, or the code"
    head = ["", *(letter(number) for number in range(len(runs)))]
    return tables.table(head, rows, finding, ". ".join(clean(note) for note in comparison.notes))


def curves(comparison: Comparison) -> View:
    """Return loss over steps and hmean over training time, one line a run."""
    import matplotlib

    rows = [_metrics(folder) for folder in comparison.runs]
    with matplotlib.rc_context(plots.STYLE):
        figure, (left, right) = plots.blank(2, height=3.7)
        titles = [
            _lines(left, rows, "loss", "step", "optimiser step", "loss"),
            _lines(right, rows, "hmean@0.5", "fit_seconds", "seconds in training", "hmean@0.5 of its own validation"),
        ]
        plots.counted(left)
        losses = [row["loss"] for run_rows in rows for row in run_rows if row.get("loss", 0) > 0]
        if losses and max(losses) > 10 * min(losses):  # else a logarithmic axis has no number on it
            left.set_yscale("log")
            left.set_ylabel("loss, log scale")
            left.yaxis.set_major_formatter("{x:g}")
            left.yaxis.set_minor_formatter("")
        right.set_ylim(0, 1)
        return plots.finished(figure, ". ".join(titles) + ".")


def _metrics(folder: Path) -> list[dict[str, float]]:
    try:
        return plots.read_metrics(folder / "metrics.csv")
    except (OSError, ValueError):  # it was started from elsewhere, or its table is torn
        return []


def _lines(axes: Axes, runs: Sequence[Sequence[dict[str, float]]], name: str, along: str, x: str, y: str) -> str:
    """Draw one figure of every run and return what is seen."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
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
    axes.set_title(textwrap.fill(title, WIDE))
    if ends:
        axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.18))
    return title


def differences(comparison: Comparison, number: int) -> dict[str, PairedDifference]:
    """Return how a run differs from the first one in hmean at each IoU, by bootstrap over the same pages.

    Of several runs each is compared with the first, and the intervals hold together.
    """
    among = len(comparison.runs) - 1
    both = ([page.results[0] for page in comparison.pages], [page.results[number].sums for page in comparison.pages])
    return {
        at: paired([result.sums[at] for result in both[0]], [sums[at] for sums in both[1]], among=among) for at in AT
    }


def sentence(name: str, difference: PairedDifference, measure: str = "hmean@0.5") -> str:
    """Return a difference in words; "cannot tell" is one of them."""
    if math.isnan(difference.low):
        few = f"{name}: {difference.pages} pages are too few to tell whether"
        return f"{few} a difference of {difference.difference:+.3f} is chance"
    interval = f"{difference.difference:+.4f} [{difference.low:+.4f}, {difference.high:+.4f}], p {_p(difference.p)}"
    if difference.verdict == "cannot tell":
        return f"{name}: cannot tell on {difference.pages} pages; the difference in {measure} is {interval}"
    return f"{name} is {difference.verdict} than A in {measure}: {interval}, {difference.pages} pages"


def real(comparison: Comparison) -> View:
    """Return the differences with their intervals, as a plot and as a table."""
    import matplotlib

    by_run = {letter(n): differences(comparison, n) for n in range(1, len(comparison.runs))}
    entries = [
        (f"{name} − A, hmean{at}", difference) for name, all_of in by_run.items() for at, difference in all_of.items()
    ]
    with matplotlib.rc_context(plots.STYLE):
        figure, [axes] = plots.blank(height=1.0 + 0.34 * len(entries))
        for row, (_, difference) in enumerate(reversed(entries)):
            colour = {"better": GOOD, "worse": BAD}.get(difference.verdict, MUTED)
            if not math.isnan(difference.low):
                axes.plot(
                    [difference.low, difference.high], [row, row], color=colour, linewidth=3, solid_capstyle="butt"
                )
            axes.plot([difference.difference], [row], color=colour, marker="o", markersize=6)
        axes.axvline(0, color=INK, linewidth=1)
        axes.set_yticks(range(len(entries)), [name for name, _ in reversed(entries)])
        axes.set_ylim(-0.6, len(entries) - 0.4)
        axes.set_xlabel("difference; right of the line: better than A")
        axes.grid(axis="y", visible=False)
        findings = [sentence(name, all_of["@0.5"]) for name, all_of in by_run.items()]
        plot = plots.finished(figure, ". ".join(findings) + ".")
    among = len(by_run)
    head = ("", "A", "other", "difference", f"{100 * level(among):.3g} % from", "to", "p", "")
    rows = [
        (
            name,
            f"{difference.first:.4f}",
            f"{difference.second:.4f}",
            f"{difference.difference:+.4f}",
            *_ends(difference),
            difference.verdict,
        )
        for name, difference in entries
    ]
    pages_text = f"{len(comparison.pages)} pages of {clean(comparison.data)}, split {comparison.split}"
    note = f"Paired bootstrap over {pages_text}, 10,000 draws. "
    note += "It knows the pages, not how much another seed would change."
    if among > 1:
        note += f" {among} runs are compared with A, so each interval is wider: at each IoU all of them hold in 95 %."
    finding = View(heading("; ".join(findings)), "; ".join(findings))
    return join_views([finding, plot, tables.table(head, rows, "In figures", note)])


def _ends(difference: PairedDifference) -> tuple[str, str, str]:
    if math.isnan(difference.low):
        return "", "", ""
    return f"{difference.low:+.4f}", f"{difference.high:+.4f}", _p(difference.p)


def _p(value: float) -> str:
    return "below 0.001" if value < 0.001 else f"{value:.3f}"


def pages(comparison: Comparison, number: int = -1) -> View:
    """Return the pages that got better and worse from the first run to another, as bars; and the worst as pictures."""
    import matplotlib

    number %= len(comparison.runs)
    order = ranked(comparison, number)
    gains = [order_gain(comparison.pages[at], number) for at in order]
    worse, better = sum(gain < 0 for gain in gains), sum(gain > 0 for gain in gains)
    title = f"{letter(number)} against A: {better} pages better, {worse} worse, {len(gains) - better - worse} the same"
    with matplotlib.rc_context(plots.STYLE):
        figure, [axes] = plots.blank(height=2.6)
        axes.bar(range(len(gains)), gains, color=[GOOD if gain > 0 else BAD for gain in gains], width=0.85)
        axes.axhline(0, color=INK, linewidth=1)
        axes.set_ylabel("gain in hmean@0.5 of a page")
        axes.set_title(title)
        axes.grid(axis="x", visible=False)
        if len(gains) <= NAMED * 2:
            names = [clean(comparison.pages[at].name) for at in order]
            axes.set_xticks(range(len(gains)), names, rotation=45, ha="right", fontsize=7)
        else:
            axes.set_xlabel("pages, the one that got worst first")
        plot = plots.finished(figure, title)
    ends = [("Worst regressions", order[:SHOWN], lambda gain: gain < 0)]
    ends += [("Largest gains", order[::-1][:SHOWN], lambda gain: gain > 0)]
    shown = [
        _row(name, comparison, [at for at in some if meant(order_gain(comparison.pages[at], number))], number)
        for name, some, meant in ends
    ]
    return join_views([plot, *shown])


def ranked(comparison: Comparison, number: int) -> list[int]:
    """Return the positions of the pages, the one that got worst from the first run to another first."""
    return by_page(
        [page.results[0].hmean for page in comparison.pages], [page.results[number].hmean for page in comparison.pages]
    )


def order_gain(page: ComparedPage, number: int) -> float:
    """Return by how much a page's hmean@0.5 is higher than in the first run."""
    return page.results[number].hmean - page.results[0].hmean


def _row(name: str, comparison: Comparison, some: Sequence[int], number: int) -> View:
    if not some:
        return View(heading(f"{name}: none"), f"{name}: none")
    layers = [outlines(comparison.pages[at], number) for at in some]
    pictures = [_picture(comparison, at, number, page_layers) for at, page_layers in zip(some, layers, strict=True)]
    gains = ", ".join(f"{order_gain(comparison.pages[at], number):+.2f}" for at in some)
    return page_images.row(f"{name}: {gains}", pictures, page_images.legend(layers))


def outlines(page: ComparedPage, number: int) -> list[Layer]:
    """Return what both runs find on a page: text that only one of them finds, and what only the other got wrong."""
    first, other = page.results[0], page.results[number]
    before, after = dict(first.matches), dict(other.matches)
    name = letter(number)
    missed = [polygon for t, polygon in enumerate(page.polygons) if _missed(page, t, before, after)]
    return [
        Layer(
            "ignored", [p for p, skip in zip(page.polygons, page.ignored, strict=True) if skip], IGNORED, "2 3", 0.15
        ),
        Layer("found by both", [other.polygons[d] for t, d in after.items() if t in before], MUTED),
        Layer("found by A only", [first.polygons[d] for t, d in before.items() if t not in after], MISSED, "6 3", 0.2),
        Layer(f"found by {name} only", [other.polygons[d] for t, d in after.items() if t not in before], GOOD, "", 0.2),
        Layer("found by neither", missed, INK, "1 3"),
        Layer(f"wrong in {name}", _wrong(other), BAD, "", 0.15),
        Layer("wrong in A", _wrong(first), BAD, "3 3"),
    ]


def _missed(page: ComparedPage, t: int, before: dict[int, int], after: dict[int, int]) -> bool:
    return not page.ignored[t] and t not in before and t not in after


def _wrong(result: Any) -> list[Any]:
    right = {d for _, d in result.matches}
    return [polygon for d, polygon in enumerate(result.polygons) if d not in right and result.counted[d]]


def _picture(comparison: Comparison, at: int, number: int, layers: Sequence[Layer], width: int = SMALL) -> str:
    from ocrlab.data.image_io import read_image

    page = comparison.pages[at]
    scores = f"hmean@0.5 {page.results[0].hmean:.2f} in A, {page.results[number].hmean:.2f} in {letter(number)}"
    image = read_image(page.image, exif=comparison.exif)
    name = clean(page.name)
    return page_images.picture(
        image, f"page {name}: {scores}", layers, f"<b>{escape(name)}</b> · {scores}", width=width
    )


def browse(comparison: Comparison, number: int = -1) -> WidgetView:
    """Return a list of all pages to choose from, for JupyterLab; in a report, a table of what changed most."""
    number %= len(comparison.runs)
    order = ranked(comparison, number)
    ends = dict.fromkeys([*order[:5], *order[-5:]])
    rows = [
        (
            clean(comparison.pages[at].name),
            *(
                f"{result.hmean:.3f}"
                for result in (comparison.pages[at].results[0], comparison.pages[at].results[number])
            ),
            f"{order_gain(comparison.pages[at], number):+.3f}",
        )
        for at in ends
    ]
    view = tables.table(("page", "A", letter(number), "gain"), rows, f"The pages that changed most, of {len(order)}")
    return WidgetView(view.html, view.text, _widget(comparison, order, number))


def _widget(comparison: Comparison, order: Sequence[int], number: int) -> Any:
    """Return a list of pages, the one that got worst first, with the page that is chosen."""
    ipywidgets = importlib.import_module("ipywidgets")  # it has no types
    labels = [f"{order_gain(comparison.pages[at], number):+.2f}  {clean(comparison.pages[at].name)}" for at in order]
    place = ipywidgets.Dropdown(options=list(zip(labels, order, strict=True)), description="page")
    shown = ipywidgets.HTML()

    def show(_: object = None) -> None:
        layers = outlines(comparison.pages[place.value], number)
        page = _picture(comparison, place.value, number, layers, width=560)
        shown.value = page_images.row("", [page], page_images.legend([layers]))._repr_mimebundle_()["text/html"]

    place.observe(show, "value")
    show()
    return ipywidgets.VBox([place, shown])


def judge(lab: Lab, comparison: Comparison) -> None:
    """Judge each run against the first: PASS if it is better for certain, WARN where nobody can tell, FAIL if worse."""
    for number in range(1, len(comparison.runs)):
        difference = differences(comparison, number)["@0.5"]
        value = 0.5 if math.isnan(difference.ahead) else difference.ahead
        sure = (1 + level(len(comparison.runs) - 1)) / 2  # of the draws on one side: so does the interval
        lab.outcome(f"share of draws in which {letter(number)} is ahead of A", value, sure, 1 - sure)
