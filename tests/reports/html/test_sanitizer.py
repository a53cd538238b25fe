"""Strangers' HTML and CSS: what runs, fetches or leaves its place goes, everything else stays."""

import time

import pytest

from ocrlab.reports.html import sanitizer


@pytest.mark.parametrize("html", [
    '<p class="a" style="color:red">words <b>bold</b></p>',
    '<table><thead><tr><th scope="col">a</th></tr></thead><tbody><tr><td colspan="2">1</td></tr></tbody></table>',
    '<details open=""><summary>more</summary>text</details>',
    '<svg viewBox="0 0 9 9" role="img" aria-label="x"><clipPath id="c"></clipPath>'
    '<path d="M0 0" clip-path="url(#c)" style="fill:var(--a,#fff)"></path><use xlink:href="#c"></use></svg>',
    '<img src="data:image/png;base64,AAAA" alt="a dot">',
    '<a href="https://example.com/" rel="noopener noreferrer">out</a>',
])  # fmt: skip
def test_what_is_harmless_stays_as_it_is(html: str) -> None:
    assert sanitizer.piece(html).html == html


@pytest.mark.parametrize(("css", "safe"), [
    ("p { color: red }", "p{color:red}"),
    ("p { background: url(http://e.invalid/x); color: red }", "p{color:red}"),
    ("p { background: u\\72l(http://e.invalid/x) }", "p{}"),
    ("p { background: image-set('http://e.invalid/x' 1x) }", "p{}"),
    ("p { --x: url(//e.invalid) }", "p{}"),
    ("p { background: url(data:image/png;base64,AAAA) }", "p{background:url(data:image/png;base64,AAAA)}"),
    ("@import url(http://e.invalid); p { top: 0 }", "p{top:0}"),
    ("@font-face { src: url(x) } p { top: 0 }", "p{top:0}"),
    ("@media print { p { top: 0 } }", "@media print{p{top:0}}"),
    ("} body { display: none", ""),  # a rule that begins with an error is none
    ("p { top: 0", "p{top:0}"),
    ("header:not(&) { display: none } p { top: 0 }", "p{top:0}"),  # inside another rule & would mean the page
    (":is(a, :not(&)) { top: 0 } [a=b] & { top: 0 } p, ~ p { top: 0 } + p { top: 0 }", ""),
    ("p > a, a + b { top: 0 }", "p > a, a + b{top:0}"),
    ('p::before { content: "\\3c /style>" }', 'p::before{content:"\\3c /style>"}'),
])  # fmt: skip
def test_a_style_sheet_fetches_nothing_and_is_closed(css: str, safe: str) -> None:
    sheet = sanitizer.sheet(css)
    assert sheet == safe
    assert sheet.count("{") == sheet.count("}")


def test_styles_are_taken_out_and_scripts_are_reported() -> None:
    piece = sanitizer.piece("<style>p{top:0}</style><p>t</p><script>x()</script>")
    assert (piece.html, piece.css, piece.ran) == ("<p>t</p>", ("p{top:0}",), True)


def test_pictures_are_described_or_named_where_they_are_not_in_the_file() -> None:
    assert sanitizer.piece('<img src="data:image/png;base64,AAAA">', "cell 3").html.endswith('alt="cell 3">')
    gone = sanitizer.piece('<img src="http://e.invalid/x.png" alt="cat">').html
    assert gone.startswith('<span class="gone">cat: not in this file, <a href="http://e.invalid/x.png"')
    assert "<img" not in gone
    assert 'role="img" aria-label="cell 3"' in sanitizer.piece("<svg></svg>", "cell 3").html


def test_an_output_has_no_headings_and_prose_has() -> None:
    assert sanitizer.piece("<h1 id='a'>Big</h1>").html == '<p data-h="1" id="a">Big</p>'
    assert sanitizer.text("<h1>Big</h1>") == "<h1>Big</h1>"


@pytest.mark.parametrize(
    "data", ["", "x", "data:text/html,x", "data:image/png;base64,not base64!", "http://e.invalid/x.png"]
)
def test_what_is_no_picture(data: str) -> None:
    assert not sanitizer.whole(data)


@pytest.mark.parametrize("part", ["<style>", "</style>", "<style", "</style ", "<style></style"])
def test_style_sheets_without_end_take_no_time(part: str) -> None:
    for html in (part * 30_000, part * 30_000 + "</style>", "</style>" + part * 30_000):
        begun = time.process_time()
        sanitizer._split_styles(html)
        assert time.process_time() - begun < 2  # looked for from each beginning to the end it takes minutes
