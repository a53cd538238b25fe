"""Cells as HTML: of every bundle the side that needs no script; terminal output, Markdown, tables."""

import base64
import io
import re
import time

import numpy as np
import pytest
from nbformat.v4 import new_code_cell
from PIL import Image

from ocrlab.reports.html import ansi, cells, markdown, tables
from ocrlab.reports.html.cells import WIDGET_MIME, Limits, Rendering

CELL = new_code_cell("x", execution_count=3)


@pytest.mark.parametrize(("data", "shown", "never"), [
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
])  # fmt: skip
def test_the_best_side_of_a_bundle(data, shown: str, never: str) -> None:
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


@pytest.mark.parametrize(
    "cell",
    ["1" * 100_000 + "x", "1 " * 50_000 + "x", "1" + " " * 100_000 + "x", ",." * 50_000],
    ids=["digits", "spaced", "spaces", "points"],
)
def test_a_long_cell_of_a_table_takes_no_time(cell: str) -> None:
    begun = time.process_time()
    assert "data-n" not in cells.NUMBER.sub(r"<td data-n\1>\2</td>", f"<td>{cell}</td>")
    assert time.process_time() - begun < 2  # it was minutes


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


@pytest.mark.parametrize(
    ("text", "settled"),
    [
        ("1%\r2%\r100%\n", "100%\n"), ("a long line\rshort", "short" + "a long line"[5:]),
        ("one\r\ntwo\r\n", "one\ntwo\n"), ("ab\bc", "ac"), ("\b\bx", "x"),
        ("\x1b]0;title\x07x\x1b[2K\x1b[1Ay", "xy"), ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
    ],
)  # fmt: skip
def test_text_as_it_stands_at_last(text: str, settled: str) -> None:
    assert ansi.settled(text) == settled


def test_text_is_escaped_and_lines_close_their_colours() -> None:
    lines = ansi.coloured("\x1b[31m<b>\nnext\x1b[0m").split("\n")
    assert lines == ['<span class="ansi-red-fg">&lt;b&gt;</span>', '<span class="ansi-red-fg">next</span>']


def test_long_lines_wrap_and_text_beyond_a_limit_is_counted() -> None:
    assert '<pre class="stdout wrap">' in ansi.block("x" * 200, "stdout")
    assert '<pre class="stdout">' in ansi.block("x" * 100, "stdout")
    html = ansi.block("x" * 100, most=30)
    assert f'<pre class="">{"x" * 30}</pre>' in html
    assert "70 more characters" in html


def test_many_backspaces_and_many_colours_take_no_time() -> None:
    begun = time.process_time()
    assert ansi.settled("a\n" + "b" * 200_000 + "\b" * 300_000 + "c") == "a\nc"
    code = "\x1b[31mx\x1b[0m"
    assert ansi.coloured(f"{code}\n" * 60_000).count("ansi-red-fg") == 60_000
    assert time.process_time() - begun < 6  # it was minutes


def levels(*sources: str) -> tuple[str, list[int]]:
    headings = markdown.Headings()
    html = "".join(headings.put(markdown.markdown(source, {}, None)) for source in sources)
    return headings.title, [int(level) for level in re.findall(r"<h(\d) ", html)]


@pytest.mark.parametrize(("source", "title", "wanted"), [
    ("# A\n\n## B\n\n### C\n\n## D", "A", [2, 3, 2]),
    ("# A\n\n#### B\n\n###### C", "A", [2, 3]),
    ("## B\n\n# A\n\n# C", "A", [2, 2]),
    ("text", "", []),
])  # fmt: skip
def test_a_single_title_and_no_level_is_skipped(source: str, title: str, wanted: list[int]) -> None:
    assert levels(source) == (title, wanted)


@pytest.mark.parametrize(
    ("tex", "part"),
    [
        ("x^2", "<msup>"), ("$$\\frac{a}{b}$$", "<mfrac>"), ("\\[ \\sqrt{x} \\]", "<msqrt>"),
        ("\\und{", '<code class="tex">'),
    ],
)  # fmt: skip
def test_formulas_are_mathml_or_as_they_were_written(tex: str, part: str) -> None:
    assert part in markdown.formula(tex)


def test_pictures_of_the_notebook_and_of_its_folder(tmp_path) -> None:
    (tmp_path / "own.png").write_bytes(b"picture")
    code = base64.b64encode(b"picture").decode()
    html = markdown.markdown(
        "![a](own.png) ![b](attachment:x.png) ![c](no.png)", {"x.png": {"image/png": "AAAA"}}, tmp_path
    )
    assert f'src="data:image/png;base64,{code}" alt="a"' in html
    assert 'src="data:image/png;base64,AAAA" alt="b"' in html
    assert "c: not in this file" in html


def test_a_picture_that_is_too_large_stays_outside(tmp_path) -> None:
    (tmp_path / "own.png").write_bytes(b"x" * (markdown.LARGEST + 1))
    assert "not in this file" in markdown.markdown("![a](own.png)", {}, tmp_path)


def test_a_table_escapes_and_aligns() -> None:
    view = tables.table(("stage", "parameters"), [("<a>", 12345), ("all", 7)], "A finding", total=True)
    assert "&lt;a&gt;" in view.html
    assert 'class="words">stage' in view.html
    assert 'class="">parameters' in view.html
    assert "12\u202f345" in view.html
    assert '<tr class="sum">' in view.html
    assert view.text.splitlines()[:2] == ["A finding", "stage  parameters"]


def test_formulas_of_an_output_are_sanitized() -> None:
    page = cells.Rendering()
    html = cells.displayed({"text/latex": r"$\href{javascript:alert(1)}{x} + \frac{1}{2}$"}, {}, CELL, page)
    assert "<mfrac>" in html and "javascript" not in html
