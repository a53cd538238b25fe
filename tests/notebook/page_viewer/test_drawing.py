"""How a page is drawn: the kind of each polygon by dash and colour; lists, figures, and files that are saved."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from ocrlab.notebook.page_viewer import drawing as view
from ocrlab.notebook.page_viewer.messages import Detections, ViewedPage
from ocrlab.reports.html.page_images import Layer


def box(x: float, y: float, width: float = 40, height: float = 10) -> np.ndarray:
    return np.array([[x, y], [x + width, y], [x + width, y + height], [x, y + height]], np.float32)


@pytest.fixture
def page() -> ViewedPage:
    """Return a page with a text that is found, one that is missed, and one that is ignored."""
    truth = (box(10, 10), box(10, 40), box(10, 70))
    flags = np.array([False, False, True])
    peaks = np.array([0.9, 0.3, 0.8], np.float32)
    return ViewedPage(
        "page<b>", 200, 100, truth, flags, ("a", "<i>b", "###"), peaks, True, (200, 100), [], 0.1, "data:,", ""
    )


@pytest.fixture
def judged() -> Detections:
    polygons = [box(11, 10), box(120, 10), box(12, 71)]
    counts = np.array([True, True, False])
    best, reached = np.array([0.9, 0.0, 0.8]), np.array([0.9, 0.0, 0.8])
    scores = np.array([0.95, 0.7, 0.8], np.float32)
    return Detections(polygons, scores, [(0, 0)], counts, best, reached, (0.5, 0.5, 0.5), 0.003, "1,2\n", "")


def count(layers: list[Layer]) -> dict[str, int]:
    return {layer.name: len(layer.polygons) for layer in layers}


def test_every_polygon_is_what_it_is(page: ViewedPage, judged: Detections) -> None:
    counts = {"ignored text": 1, "missed": 1, "wrong": 1, "on ignored text": 1, "found": 1}
    assert count(view.layers(page, judged)) == counts
    assert count(view.layers(page, judged, annotation=True)) == counts | {"annotation": 1}
    alone = replace(page, annotated=False, truth=(), ignored=np.zeros(0, bool))
    assert count(view.layers(alone, judged)) == {"text": 3}


def test_no_kind_differs_by_its_colour_alone(page: ViewedPage, judged: Detections) -> None:
    layers = view.layers(page, judged, annotation=True)
    styles = [(layer.dash, layer.fill > 0) for layer in layers if layer.name != "on ignored text"]
    assert len(set(styles)) == len(styles)
    by_name = {layer.name: layer for layer in layers}
    assert by_name["found"].dash == "" != by_name["wrong"].dash
    assert all(f'stroke-dasharray="{layer.dash}"' in view.legend(layers) for layer in layers if layer.dash)


def test_the_overlay_has_each_kind_once_and_a_number_where_it_is_wanted(page: ViewedPage, judged: Detections) -> None:
    layers = view.layers(page, judged)
    plain = view.overlay(page, layers, {}, judged.polygons)
    assert re.findall(r'<path class="([\w-]+)"', plain) == [layer.name.replace(" ", "-") for layer in layers]
    assert "M120 10L160 10L160 20L120 20Z" in plain and "<text" not in plain
    assert view.overlay(page, layers, {0: "1", 2: "3"}, judged.polygons).count("<text") == 2


def test_nothing_that_a_stranger_wrote_becomes_markup(page: ViewedPage, judged: Detections) -> None:
    layers = view.layers(page, judged)
    every = view.overlay(page, layers, {}, []) + view.base(page, page.image, "page") + view.listed(page, judged)
    every += view.alert("<script>") + view.saved(page, judged)
    assert "<b>" not in every and "<i>" not in every and "<script>" not in every
    assert "&lt;i&gt;b" in every


def test_figures_state_how_far_they_are_from_the_detectors_own(page: ViewedPage, judged: Detections) -> None:
    better = replace(judged, figures=(0.6, 0.4, 0.5))
    html = view.figures(better, judged)
    assert "0.600" in html and "+0.100" in html and "\u22120.100" in html and html.count("as set") == 1
    assert "3 text regions" in view.figures(replace(judged, figures=None), judged)
    assert "1 text region<" in view.figures(replace(judged, figures=None, polygons=judged.polygons[:1]), judged)


def test_lists_begin_with_what_is_doubtful(page: ViewedPage, judged: Detections) -> None:
    html = view.listed(page, judged)
    assert re.findall(r"(wrong|on ignored text|found)</td>", html) == ["wrong", "on ignored text", "found"]
    assert "1 missed" in html and "0.30" in html
    assert "missed" not in view.listed(replace(page, annotated=False), judged)
    nothing = replace(judged, polygons=[], scores=np.zeros(0, np.float32), pairs=[], counts=np.zeros(0, bool))
    assert "0 found" in view.listed(page, replace(nothing, best=np.zeros(0), reached=np.zeros(3)))


def test_what_is_saved_is_the_prediction_that_others_read(page: ViewedPage, judged: Detections) -> None:
    links = re.findall(r'download="([^"]+)" href="data:([\w/]+);base64,([^"]+)"', view.saved(page, judged))
    assert [(name, kind) for name, kind, _ in links] == [
        ("page&lt;b&gt;.json", "application/json"),
        ("page&lt;b&gt;.txt", "text/plain"),
    ]
    record, lines = (base64.b64decode(data).decode() for *_, data in links)
    prediction = json.loads(record)
    assert (prediction["schema"], prediction["width"], prediction["height"], len(prediction["detections"])) == (
        1,
        200,
        100,
        3,
    )
    assert prediction["detections"][0] == {"polygon": box(11, 10).tolist(), "score": pytest.approx(0.95)}
    assert lines == judged.icdar


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("page.png", "page.png"),
        ("../../etc/passwd", "passwd"),
        ("C:\\scans\\a b.jpg", "a b.jpg"),
        ("a\0b\n.png", "ab.png"),
        ("..", "image"),
        ("", "image"),
        ("x" * 300 + ".png", "x" * 76 + ".png"),
        ("영수증.jpg", "영수증.jpg"),
    ],
)
def test_names_of_uploads_name_no_folder(name: str, plain: str) -> None:
    assert view.plain_name(name) == plain
