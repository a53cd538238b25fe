"""A view stands alone, as HTML and as text."""

from __future__ import annotations

from ocrlab.report.view import View, page, say


def test_a_view_shows_itself_in_both_ways() -> None:
    bundle = View("<p>hi</p>", "hi")._repr_mimebundle_()
    assert bundle["text/plain"] == "hi"
    assert bundle["text/html"].startswith("<style>")
    assert bundle["text/html"].endswith('<div class="ocrlab"><p>hi</p></div>')


def test_nothing_is_fetched() -> None:
    assert "url(" not in page("")
    assert "//" not in page("").replace("</", "")


def test_titles_are_escaped() -> None:
    assert say("<a>", "b & c") == '<p class="say">&lt;a&gt;</p><p class="note">b &amp; c</p>'
