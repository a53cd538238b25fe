"""The browser of these tests itself: it sees what is asked for and complained about, and reaches nothing."""

from collections.abc import Callable
from pathlib import Path

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


@pytest.mark.parametrize("host", ["example.invalid", "example.com", "93.184.216.34"])
def test_what_a_page_asks_for_is_recorded_and_refused(browser, written: Callable[[str], Path], host: str) -> None:
    browser.open(written(f'<img src="http://{host}/a.png" alt="">'))
    assert browser.requests() == [f"http://{host}/a.png"]
    assert any("ERR_NAME_NOT_RESOLVED" in complaint for complaint in browser.complaints())


def test_errors_of_scripts_are_recorded_once(browser, written: Callable[[str], Path]) -> None:
    browser.open(written("<script>console.warn('careful'); throw Error('broken')</script>"))
    complaints = browser.complaints()
    assert len(complaints) == 2
    assert "careful" in complaints[0]
    assert "broken" in complaints[1]
    browser.open(written(""))
    assert browser.complaints() == []
