"""The style sheet of a report: small, without anything to fetch, and with a dark side for every colour."""

from __future__ import annotations

import re

from ocrlab.reports import view
from ocrlab.reports.html import stylesheet


def test_it_is_small_and_fetches_nothing() -> None:
    sheet = stylesheet.sheet()
    assert len(sheet) < 14_000
    assert sheet.count("{") == sheet.count("}")
    assert not re.search(r"url\(|@import|@font-face|<", sheet)


def test_every_colour_of_a_view_has_a_dark_side() -> None:
    dark = stylesheet.sheet().partition("prefers-color-scheme:dark")[2]
    for name, colour in view.DARK.values():
        assert f"--ocr-{name}:{colour}" in dark
