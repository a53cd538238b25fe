"""08_inspect in a real browser, in JupyterLab and under voila: sliders move the picture, uploads are looked at."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser
NAME = "08_inspect.ipynb"
PICTURE = "return document.querySelectorAll('.ocrlab-stack svg').length == 2"
POLYGONS = "return document.querySelector('.ocrlab-stack [class=found], .ocrlab-stack [class=text]').getAttribute('d')"
MESSAGE = "return document.querySelector('.ocrlab-side .problem')?.textContent"
FIGURES = "return document.querySelector('.ocrlab-side [role=status]').textContent"
IMAGE = "return document.querySelector('.ocrlab-stack image').getAttribute('href')"
VOILAS = re.compile(r"https://cdn\.jsdelivr\.net/npm/@fortawesome/.*\.css$")  # its template's icons: without, no arrows
SLIDER = ".ocrlab-side .noUi-handle"  # the first is the threshold


@pytest.fixture
def voila(program: Callable[..., str], jupyter: dict[str, str]) -> Callable[[Path], str]:
    """Return a function that starts voila on a notebook and returns its URL."""
    pytest.importorskip("voila")

    def start(notebook: Path) -> str:
        words = [sys.executable, "-m", "voila", "--no-browser", "--port", "{port}", str(notebook)]
        return program(words, "/voila/static/voila.js", env=jupyter).removesuffix("voila/static/voila.js")

    return start


def moved(browser: Any) -> None:
    """Move the threshold by the keyboard: polygons and figures change, the page below them stays."""
    from selenium.webdriver.common.keys import Keys

    before, image = browser.run(POLYGONS), browser.run(IMAGE)
    browser.find(SLIDER)[0].send_keys(Keys.PAGE_UP * 2)
    browser.wait(f"return (() => {{ {POLYGONS} }})() != {before!r}")
    assert browser.run(IMAGE) == image
    browser.wait(f"return (() => {{ {FIGURES} }})().includes('\u2212')")  # it finds less, and says by how much


def uploaded(browser: Any, file: Path) -> None:
    """Choose a file as a person does; the window of the operating system, which no test can reach, stays shut."""
    browser.run("""HTMLInputElement.prototype.click = function () {
        document.querySelectorAll('input.asked').forEach(one => one.remove());
        this.className = 'asked';
        document.body.append(this);
    };""")
    browser.find(".ocrlab-side .widget-upload")[0].click()
    browser.find("input.asked")[0].send_keys(str(file))


def detected(browser: Any, file: Path) -> None:
    image = browser.run(IMAGE)
    uploaded(browser, file)
    browser.wait("return document.querySelector('.ocrlab-side [role=status]').textContent.includes('text regions')")
    assert browser.run(IMAGE) != image
    assert len(browser.run(POLYGONS)) > 200
    chosen = "return document.querySelectorAll('.ocrlab-side select')[1].selectedOptions[0].textContent"
    assert browser.run(chosen).replace("\u00a0", " ") == f"uploaded: {file.name}"


def refused(browser: Any, folder: Path) -> None:
    broken = folder / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n and then nothing that makes sense")
    image = browser.run(IMAGE)
    uploaded(browser, broken)
    message = browser.wait(MESSAGE)
    assert message.startswith("broken.png: is not an image that can be read") and "Traceback" not in message
    assert browser.run(IMAGE) == image


def elsewhere(browser: Any) -> list[str]:
    """Return what was asked of anybody else, in vain."""
    return [url for url in browser.requests() if not url.startswith(("http://127.0.0.1", "ws://127.0.0.1"))]


@pytest.mark.slow  # minutes on a busy machine
def test_sliders_and_uploads_work_in_jupyterlab(browser, lab, notebooks, run_all, root, tmp_path):
    assert run_all(browser, lab(notebooks), NAME) == "PASS"
    browser.wait(PICTURE)
    moved(browser)
    detected(browser, next((root / "data_samples" / "train" / "images").glob("*.jpg")))
    refused(browser, tmp_path)
    assert elsewhere(browser) == []


@pytest.mark.slow
def test_sliders_and_uploads_work_under_voila(browser, voila, notebooks, root, tmp_path):
    browser.driver.set_page_load_timeout(240)  # voila answers when the last cell has run
    browser.open(voila(notebooks / NAME))
    browser.wait(PICTURE, 60)
    moved(browser)
    detected(browser, next((root / "data_samples" / "train" / "images").glob("*.jpg")))
    refused(browser, tmp_path)
    words = "return [...document.querySelectorAll('.outcome .word')].map(word => word.firstChild.textContent)"
    assert browser.run(words) == ["PASS"]
    assert [url for url in elsewhere(browser) if not VOILAS.match(url)] == []
    # Icons, and modules of an older JupyterLab that voila itself brings: webpack says so in either of two ways.
    harmless = ("ERR_NAME_NOT_RESOLVED", "Unsatisfied version", "No satisfying version")
    assert [complaint for complaint in browser.complaints() if not any(words in complaint for words in harmless)] == []
