"""The style sheet of a report: small, without anything to fetch, and with a dark side for every colour."""

from __future__ import annotations

import re

from ocrlab.report import style, view


def test_it_is_small_and_fetches_nothing() -> None:
    sheet = style.sheet()
    assert len(sheet) < 14_000
    assert sheet.count("{") == sheet.count("}")
    assert not re.search(r"url\(|@import|@font-face|<", sheet)


def test_every_colour_of_a_view_has_a_dark_side() -> None:
    dark = style.sheet().partition("prefers-color-scheme:dark")[2]
    for name, colour in view.DARK.values():
        assert f"--ocr-{name}:{colour}" in dark
