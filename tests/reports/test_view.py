"""A view stands alone, as HTML and as text."""

from __future__ import annotations

import re

from ocrlab.reports.notebooks import outcome
from ocrlab.reports.view import CSS, DARK, View, heading, page, report_css


def test_a_view_shows_itself_in_both_ways() -> None:
    bundle = View("<p>hi</p>", "hi")._repr_mimebundle_()
    assert bundle["text/plain"] == "hi"
    assert bundle["text/html"].startswith("<style>")
    assert bundle["text/html"].endswith('<div class="ocrlab"><p>hi</p></div>')


def test_nothing_is_fetched() -> None:
    assert "url(" not in page("")
    assert "//" not in page("").replace("</", "")


def test_what_stands_between_backquotes_is_code() -> None:
    assert heading("kept by `a<b>`, 3` long") == '<p class="say">kept by <code>a&lt;b&gt;</code>, 3` long</p>'


def test_titles_are_escaped() -> None:
    assert heading("<a>", "b & c") == '<p class="say">&lt;a&gt;</p><p class="note">b &amp; c</p>'


def test_what_jupyterlab_says_of_code_and_lists_is_overruled() -> None:
    """Its rules are `.jp-ThemedContainer .jp-RenderedHTMLCommon :not(pre) > code` and `... ul:not(.list-inline)`."""
    rules = {rule.split("{")[0].strip(): rule.split("{")[1] for rule in CSS.split("}") if "{" in rule}
    code = next(name for name, body in rules.items() if name.endswith(" code") and "background: none" in body)
    assert specificity(code) > (0, 2, 2)
    lists = next(name for name, body in rules.items() if "ul.lines" in name and "padding-left: 0" in body)
    assert all(specificity(name) > (0, 2, 1) for name in lists.split(","))
    assert "float: none" in rules[".ocrlab dl dt, .ocrlab dl dd"]
    following = next(name for name in outcome.CSS.split("}") if "p.next code" in name).split("{")[0].strip()
    assert specificity(following) > specificity(code)


def specificity(selector: str) -> tuple[int, int, int]:
    """Return how a browser ranks a selector of classes and types (CSS Selectors 4, section 17)."""
    classes = selector.count(".")
    types = sum(part[:1].isalpha() for part in selector.replace(",", " ").split())
    return 0, classes, types


def test_the_style_sheet_of_a_report_is_small_fetches_nothing_and_knows_the_dark() -> None:
    sheet = report_css()
    assert len(sheet) < 14_000 and sheet.count("{") == sheet.count("}")
    assert not re.search(r"url\(|@import|@font-face|<", sheet)
    dark = sheet.rpartition("prefers-color-scheme:dark")[2]
    assert all(f"--ocr-{name}:{colour}" in dark for name, colour in DARK.values())
