"""The browser of these tests itself: it sees what is asked for and complained about, and reaches nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>t</title><link rel="icon" href="data:,">
<style>body { color: black } @media (prefers-color-scheme: dark) { body { color: white } }
@media print { body { color: red } }</style></head><body><p>text</p>{inside}</body></html>"""


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    def write(inside: str) -> Path:
        path = tmp_path / "page.html"
        path.write_text(PAGE.replace("{inside}", inside), encoding="utf-8")
        return path

    return write


def test_a_quiet_page_asks_for_nothing(browser: Any, written: Callable[[str], Path]) -> None:
    browser.open(written('<img src="data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA=" alt="">'))
    assert browser.requests() == []
    assert browser.complaints() == []


@pytest.mark.parametrize("host", ["example.invalid", "example.com", "93.184.216.34"])
def test_what_a_page_asks_for_is_recorded_and_refused(browser: Any, written: Callable[[str], Path], host: str) -> None:
    browser.open(written(f'<img src="http://{host}/a.png" alt="">'))
    assert browser.requests() == [f"http://{host}/a.png"]
    assert any("ERR_NAME_NOT_RESOLVED" in complaint for complaint in browser.complaints())


def test_errors_of_scripts_are_recorded_once(browser: Any, written: Callable[[str], Path]) -> None:
    browser.open(written("<script>console.warn('careful'); throw Error('broken')</script>"))
    complaints = browser.complaints()
    assert len(complaints) == 2
    assert "careful" in complaints[0]
    assert "broken" in complaints[1]
    browser.open(written(""))
    assert browser.complaints() == []


def test_scheme_width_and_print_are_emulated(browser: Any, written: Callable[[str], Path]) -> None:
    colour = "return getComputedStyle(document.body).color"
    browser.open(written(""), width=400, scheme="dark")
    assert browser.run("return innerWidth") == 400
    assert browser.run(colour) == "rgb(255, 255, 255)"
    browser.look(scheme="light")
    assert browser.run(colour) == "rgb(0, 0, 0)"
    browser.look(media="print")
    assert browser.run(colour) == "rgb(255, 0, 0)"


def test_a_folder_and_a_program_are_served(
    browser: Any, written: Callable[[str], Path], serve: Callable[[Path], str], program: Callable[..., str]
) -> None:
    page = written('<img src="missing.png" alt="">')
    url = serve(page.parent)
    browser.open(url + page.name)
    assert browser.requests() == [url + "missing.png"]
    words = [sys.executable, "-m", "http.server", "{port}", "--bind", "127.0.0.1", "--directory", str(page.parent)]
    browser.open(program(words, f"/{page.name}"))
    assert [element.text for element in browser.find("p")] == ["text"]


def test_a_program_that_ends_says_why(program: Callable[..., str]) -> None:
    with pytest.raises(AssertionError, match="no such thing"):
        program([sys.executable, "-c", "raise SystemExit('no such thing')"])
