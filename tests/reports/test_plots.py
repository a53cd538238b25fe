"""Plots: the title says the finding, axes have units, words stand beside the picture, and none is heavy."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from ocrlab.reports import plots
from ocrlab.reports.view import View

ROWS = [
    {"step": 10.0, "loss": 8.0, "bce": 5.0, "dice": 1.0, "l1": 2.0},
    {"step": 20.0, "loss": 2.0, "bce": 1.0, "dice": 0.5, "l1": 0.5},
    {"step": 20.0, "hmean@0.5": 0.4, "hmean@0.7": 0.2, "hmean@0.8": 0.1},
    {"step": 30.0, "hmean@0.5": 0.9, "hmean@0.7": 0.7, "hmean@0.8": 0.4},
]


def payload(view: View) -> tuple[str, bytes]:
    match = re.search(r"data:image/([a-z+]+);base64,([A-Za-z0-9+/=]+)", view.html)
    assert match is not None
    return match[1], base64.b64decode(match[2])


def test_curves_state_their_finding() -> None:
    view = plots.curves(ROWS, limit=0.85)
    assert view.text == "Loss fell: 8 to 2 in 20 steps. hmean@0.5 reached 0.900 at step 30."
    assert f'role="img" aria-label="{view.text}"' in view.html
    assert view.html.startswith('<div class="wide"><svg ')
    assert len(view.html) < 30_000
    assert "optimiser step" in view.html
    assert "hmean@0.5 reached 0.900 at step 30" in view.html


def test_two_plots_on_a_page_share_no_name_and_use_their_own() -> None:
    first, second = plots.curves(ROWS).html, plots.curves(ROWS, limit=0.5).html
    names = [set(re.findall(r' id="([^"]+)"', html)) for html in (first, second)]
    assert names[0]
    assert not names[0] & names[1]
    for html, own in zip((first, second), names, strict=True):
        assert set(re.findall(r"url\(#([^)]+)\)", html)) | set(re.findall(r'href="#([^"]+)"', html)) == own


def test_a_plot_knows_the_dark() -> None:
    shown = plots.curves(ROWS)._repr_mimebundle_()["text/html"]
    assert "fill: var(--ocr-paper,#ffffff)" in shown
    assert not re.search(r"(?<!,)#1f2933", shown.partition("<svg")[2])


@pytest.mark.parametrize("rows", [[], ROWS[:1], ROWS[2:], [{"step": 1.0, "loss": float("nan")}]])
def test_curves_of_a_run_that_logged_little(rows: list[dict[str, float]]) -> None:
    assert plots.curves(rows).text


@pytest.mark.parametrize(("count", "kind"), [(1999, "svg+xml"), (2000, "png")])
def test_svg_below_two_thousand_points(count: int, kind: str) -> None:
    with matplotlib.rc_context(plots.STYLE):
        figure, (axes,) = plots.blank(width=4)
        axes.plot(np.zeros(count))
        view = plots.finished(figure, "a line")
    assert view.html.startswith('<div class="wide"><svg') == (kind == "svg+xml")
    if kind == "png":
        image_kind, data = payload(view)
        assert image_kind == kind
        assert int.from_bytes(data[16:20], "big") == 400  # 4 inches at 100 dpi


def test_no_legend_lies_over_a_curve() -> None:
    with matplotlib.rc_context(plots.STYLE):
        figure, (axes,) = plots.blank(width=4)
        axes.plot([3, 2, 1], label="loss")
        plots._legend(axes)
        figure.draw_without_rendering()
        assert axes.get_legend().get_window_extent().y1 < axes.get_window_extent().y0
        assert axes.get_legend().get_window_extent().y0 >= 0


def test_images_and_scatters_count() -> None:
    figure, (left, right) = plots.blank(2)
    left.imshow(np.zeros((50, 60)))
    right.scatter(np.zeros(500), np.zeros(500))
    assert plots.points(figure) == 3000 + 500


def test_the_same_plot_is_the_same_file() -> None:
    assert plots.curves(ROWS).html == plots.curves(ROWS).html


def test_metrics_are_read_row_by_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss,hmean@0.5\n1,2.5,\n2,,0.5\n", encoding="utf-8")
    assert plots.read_metrics(path) == [{"step": 1, "loss": 2.5}, {"step": 2, "hmean@0.5": 0.5}]


@pytest.mark.parametrize("count", [1, 2, 4, 300])
def test_steps_are_numbered_in_whole_ones(count: int) -> None:
    _, [axes] = plots.blank()
    axes.bar(range(1, count + 1), [1.0] * count)
    plots.counted(axes)
    ticks = [tick for tick in axes.get_xticks() if 0.6 <= tick <= count + 0.4]
    assert ticks and all(tick == int(tick) for tick in ticks)
