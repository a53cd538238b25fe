"""Cells as HTML: of every bundle the side that needs no script; the browser's view of them is in tests/browser."""

from __future__ import annotations

import base64
import io
import time
from typing import Any

import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_output
from PIL import Image

from ocrlab.reports.html import cells
from ocrlab.reports.html.cells import WIDGET_MIME, Limits, Rendering

CELL = new_code_cell("x", execution_count=3)


@pytest.mark.parametrize(
    ("data", "shown", "never"),
    [
        ({"text/html": "<p>html</p>", "text/plain": "plain"}, "<p>html</p>", "plain"),
        ({WIDGET_MIME: {}, "text/html": "<p>static</p>", "text/plain": "plain"}, "<p>static</p>", "scripts"),
        ({WIDGET_MIME: {}, "text/plain": "IntSlider()"}, "IntSlider()", "<script"),
        ({"text/html": "<script>x()</script>", "text/plain": "Figure"}, "needs scripts", "<script"),
        ({"text/html": "<script>x()</script>", "image/png": "AAAA"}, "data:image/png;base64,AAAA", "<script"),
        ({"image/png": "AA\nAA", "text/plain": "<Figure>"}, 'alt="picture of cell [3]"', "Figure"),
        ({"image/png": "AAAA", "text/plain": "a curve"}, 'alt="picture of cell [3]: a curve"', "<pre"),
        ({"image/png": "no!"}, "cannot be read", "<img"),
        ({"text/latex": "$x^2$"}, "<msup>", "$"),
        ({"application/json": {"a": 1}}, "&#34;a&#34;: 1", "<JSON"),
        ({"application/pdf": "x"}, "An output of type application/pdf", "<embed"),
        ({"text/plain": "a < b"}, "a &lt; b", "a < b"),
    ],
)
def test_the_best_side_of_a_bundle(data: dict[str, Any], shown: str, never: str) -> None:
    html = cells.displayed(data, {}, CELL, Rendering())
    assert shown in html
    assert never not in html


def test_figures_of_a_table_are_marked_and_colours_stand_on_paper() -> None:
    table = "<table><tr><th>a</th><td>-1.5</td><td id='x'>12 %</td><td>word</td></tr></table>"
    assert cells.displayed({"text/html": table}, {}, CELL, Rendering()).count("<td data-n") == 2
    for html, paper in (("<p>t</p>", False), ('<p style="color:red">t</p>', True), ("<svg></svg><p>t</p>", True)):
        assert ('class="out paper' in cells.displayed({"text/html": html}, {}, CELL, Rendering())) == paper


def test_styles_of_an_output_are_for_that_output_alone() -> None:
    page = Rendering()
    html = cells.displayed({"text/html": "<style>p{top:0}</style><p>t</p>"}, {}, CELL, page)
    again = cells.displayed({"text/html": "<style>p{top:0}</style><p>u</p>"}, {}, CELL, page)
    assert page.sheets == {"p{top:0}": "s0"}
    assert 'class="out html s0"' in html
    assert 'class="out html s0"' in again


def test_pieces_of_a_stream_are_joined() -> None:
    texts = (("stdout", "a"), ("stdout", "b"), ("stdout", "c"), ("stderr", "d"))
    pieces = [new_output("stream", name=name, text=text) for name, text in texts]
    assert [piece["text"] for piece in cells.joined(pieces)] == ["abc", "d"]
    assert [piece["text"] for piece in pieces] == ["a", "b", "c", "d"]


def test_code_in_any_language_and_hidden_code() -> None:
    assert 'class="nb">print</span>' in cells.highlighted("print(1)", "python")
    for language in ("no such language", "<script>"):
        assert "print(1)" in cells.highlighted("print(1)", language)
    hidden = new_code_cell("secret()", metadata={"jupyter": {"source_hidden": True}})
    assert "secret" not in cells.code(hidden, 1, Rendering())


@pytest.mark.parametrize(
    "cell",
    ["1" * 100_000 + "x", "1 " * 50_000 + "x", "1" + " " * 100_000 + "x", ",." * 50_000],
    ids=["digits", "spaced", "spaces", "points"],
)
def test_a_long_cell_of_a_table_takes_no_time(cell: str) -> None:
    begun = time.process_time()
    assert "data-n" not in cells.NUMBER.sub(r"<td data-n\1>\2</td>", f"<td>{cell}</td>")
    assert time.process_time() - begun < 2  # it was minutes


def test_formulas_of_an_output_are_sanitized() -> None:
    page = cells.Rendering()
    html = cells.displayed({"text/latex": r"$\href{javascript:alert(1)}{x} + \frac{1}{2}$"}, {}, CELL, page)
    assert "<mfrac>" in html and "javascript" not in html


def address(width: int, height: int, mode: str = "RGB") -> str:
    noise = np.random.default_rng(0).integers(0, 255, (height, width, len(mode)), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(noise).save(data, "png")
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_a_large_picture_is_reduced(mode: str) -> None:
    html = f'<img src="{address(600, 300, mode)}" alt="x">'
    reduced = cells.limit_pictures(html, Limits(pixels=200, quality=60))
    assert len(reduced) < len(html) / 5
    code = reduced.partition("base64,")[2].partition('"')[0]
    with Image.open(io.BytesIO(base64.b64decode(code))) as image:
        assert image.size == (200, 100)
    assert reduced.endswith('" alt="x">')


@pytest.mark.parametrize("data", ["data:image/png;base64,AAAA", "data:image/png;base64," + "A" * 80_000])
def test_what_is_small_or_no_picture_stays(data: str) -> None:
    assert cells.limit_pictures(data, Limits(pixels=200, quality=60)) == data
