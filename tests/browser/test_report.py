"""Reports as a browser sees them: of a notebook with every kind of output, and of ocrlab notebooks that ran."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from ocrlab.cli import main
from ocrlab.reports import plots
from ocrlab.reports.html import document, page_images, tables
from ocrlab.reports.view import View

pytestmark = pytest.mark.browser
OVERHEAD, LARGEST = 20_000, 2_000_000  # bytes beside the content, and of a whole report
WIDGET = "application/vnd.jupyter.widget-view+json"
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="200" height="80"><text x="10" y="40">drawn</text></svg>'
RULE = "\x1b[0;31m" + "-" * 75 + "\x1b[0m"
LINE = "\x1b[1;32m      1\x1b[0m x \x1b[38;5;241m=\x1b[39m \x1b[38;5;28mint\x1b[39m(\x1b[43m1\x1b[49m)"
TRACEBACK = [RULE, f"Cell \x1b[0;32mIn[9]\x1b[0m\n{LINE}", "\x1b[0;31mValueError\x1b[0m: \x1b[48;2;20;30;40mnot\x1b[0m"]
COLOURS = "".join(f"\x1b[{code}m{code} \x1b[0m" for code in (*range(30, 38), *range(90, 98), *range(40, 48)))
COLOURS += "".join(f"\x1b[38;5;{code}m{code} \x1b[0m\x1b[30;48;5;{code}m{code} \x1b[0m" for code in range(256))
PROSE = r"""# Every kind of *output* & <more>

Prose with **weight**, `code`, a [link](https://example.com/page), a formula $e^{i\pi} + 1 = 0$, ~~gone~~ text.

![a remote picture](https://example.invalid/remote.png) ![a local one](missing/here.png) ![kept](attachment:dot.png)

$$\int_0^1 x^2 \, dx = \frac{1}{3}$$

> said by somebody

- [x] done

| word | number |
|:--|--:|
| one | 22.5 |

```python
def f(x: int) -> str:  # a comment
    return "text" * 3
```

#### A heading that skips levels
"""


def dot() -> str:
    """Return a small PNG as base64."""
    from PIL import Image

    data = io.BytesIO()
    Image.new("RGB", (120, 40), (37, 99, 168)).save(data, "png")
    return base64.b64encode(data.getvalue()).decode("ascii")


def cell(number: int, source: str, *outputs: Any) -> Any:
    """Return an executed code cell; a dict among its outputs is a bundle that was displayed."""
    shown = [new_output("display_data", data=output) if "output_type" not in output else output for output in outputs]
    return new_code_cell(source, outputs=shown, execution_count=number)


def stream(text: str, name: str = "stdout") -> Any:
    return new_output("stream", name=name, text=text)


def every_kind() -> Any:
    """Return an executed notebook of a stranger with every kind of output."""
    import pandas as pd

    frame = pd.DataFrame({"name": ["a", "b"], "value": [1.5, -20.25], "count": [3, 40_000]})
    styled = frame.style.background_gradient(subset=["value"]).set_caption("styled")
    cells = [
        new_markdown_cell(PROSE, attachments={"dot.png": {"image/png": dot()}}),
        new_markdown_cell("## Text"),
        cell(1, "print('colours')", stream(COLOURS)),
        cell(2, "bar()", stream("careful: \x1b[33mslow\x1b[0m\n" + "".join(f"\r{n}%" for n in range(101)), "stderr")),
        cell(3, "print('x' * 20_000)", stream("x" * 20_000)),
        cell(4, "many()", stream("".join(f"line {n}\n" for n in range(5000)))),
        new_markdown_cell("# A second title\n\n## Tables"),
        cell(5, "frame", {"text/html": frame._repr_html_(), "text/plain": str(frame)}),
        cell(6, "styled", {"text/html": styled.to_html(), "text/plain": "styled"}),
        cell(7, "html", {"text/html": "<h1>Big</h1><p>words</p><svg><text y='20'>black by itself</text></svg>"}),
        new_markdown_cell("## Pictures\n\n<h1>A third, in HTML</h1>"),
        cell(8, "svg", {"image/svg+xml": SVG, "text/plain": "<drawn>"}),
        cell(9, "png", {"image/png": dot(), "text/plain": "<Figure>"}, {"image/jpeg": dot(), "text/plain": "a page"}),
        new_markdown_cell("### Formulas and data"),
        cell(10, "latex", {"text/latex": r"$\displaystyle \sqrt{x}$"}, {"text/latex": r"\undefined{"}),
        cell(11, "markdown", {"text/markdown": "# said\n\n**bold** $x_1$", "text/plain": "x"}),
        cell(12, "json", {"application/json": {"a": [1, 2]}, "text/plain": "<JSON>"}),
        new_markdown_cell("## What needs scripts"),
        cell(13, "slider", {WIDGET: {"model_id": "x"}, "text/plain": "IntSlider(value=0)"}),
        cell(14, "both", {WIDGET: {"model_id": "y"}, "text/html": "<p>the static side</p>"}),
        cell(15, "plotly", {"text/html": "<div></div><script>draw('p')</script>", "text/plain": "Figure"}),
        cell(16, "odd", {"application/javascript": "alert(1)"}, {"application/pdf": "JVBERi0="}),
        new_markdown_cell("## What went wrong"),
        cell(17, "int('a')", new_output("error", ename="ValueError", evalue="not a <b>", traceback=TRACEBACK)),
        new_code_cell("never()"),
    ]
    about = {"kernelspec": {"name": "python3", "display_name": "x", "language": "python"}}
    return new_notebook(cells=cells, metadata=about)


def judged(browser: Any, page: Path, *, headless: int = 0, outcome_css: str = ".outcome") -> dict[str, Any]:
    """Look at a report by day, by night, on paper and narrow; fails with all that is wrong; returns its figures.

    What came of it is `said` where this selector finds it first.
    """
    text = page.read_text(encoding="utf-8")
    wrong: list[str] = []
    figures: dict[str, Any] = {"bytes": len(text.encode()), "requests": 0, "errors": 0}
    for name, width, scheme, media in (
        ("light", 1200, "light", ""),
        ("dark", 1200, "dark", ""),
        ("print", 700, "light", "print"),
        ("narrow", 400, "light", ""),
        ("narrow and dark", 400, "dark", ""),
    ):
        browser.open(page, width=width, scheme=scheme)
        outcome = browser.run(f"return document.querySelector('{outcome_css}').getBoundingClientRect().bottom")
        browser.look(width, 900, scheme, media)
        findings = browser.examine()
        requests, complaints = browser.requests(), browser.complaints()
        figures["requests"] += len(requests)
        figures["errors"] += len(complaints)
        never = ("faint", "skipped", "undescribed", "broken", "twice", "dangling", "scripts", "handlers")
        wrong += [f"{name}: {what} {finding}" for what in never for finding in findings[what]]
        wrong += [f"{name}: {what}" for what in (*requests, *complaints)]
        wrong += [f"{name}: {findings['titles']} titles"] if findings["titles"] != 1 else []
        wrong += [f"{name}: no header: {findings['headless']}"] if len(findings["headless"]) > headless else []
        wrong += [f"{name}: {findings['wide']} px too wide"] if findings["wide"] > 0 and not media else []
        wrong += [f"{name}: the outcome ends at {outcome} px"] if not 0 < outcome <= 600 else []
        wrong += [f"{name}: {findings['texts']} texts"] if findings["texts"] < 20 else []
        wrong += [f"{name}: no language or no name"] if findings["language"] != "en" or not findings["named"] else []
    body = browser.run("return new TextEncoder().encode(document.body.innerHTML).length")
    figures["overhead"] = figures["bytes"] - body
    wrong += [f"overhead {figures['overhead']} bytes"] if figures["overhead"] > OVERHEAD else []
    wrong += [f"{figures['bytes']} bytes"] if figures["bytes"] > LARGEST else []
    assert wrong == [], "\n".join(wrong)
    return figures


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the report of a notebook with every kind of output."""
    page = tmp_path_factory.mktemp("every") / "every.html"
    page.write_text(document.page(every_kind(), "every"), encoding="utf-8")
    return page


def test_every_kind_of_output_is_legible_and_asks_for_nothing(browser: Any, every: Path) -> None:
    judged(browser, every)


def test_every_output_is_visible(browser: Any, every: Path) -> None:
    browser.open(every)
    shown = browser.run("return document.querySelector('main').innerText")
    for text in ("255", "100%", "line 0", "4,955 more lines", "line 4999", "-20.25", "styled", "Big", "words"):
        assert text in shown, text
    for text in ("IntSlider(value=0)", "the static side", "not in this file", "ValueError", "a comment"):
        assert text in shown, text
    assert shown.count("needs scripts") == 4  # the heading, a slider, a plot, a script
    assert "99%" not in shown, "a bar that rewrote its line stands as it was at last"
    widths = browser.run("return [...document.querySelectorAll('.out img, .prose img')].map(i => i.naturalWidth)")
    assert widths == [120, 200, 120, 120]
    assert browser.run("return document.querySelectorAll('math').length") == 4
    assert browser.run("return document.querySelector('math msup') !== null")


def test_figures_stand_right_and_words_left(browser: Any, every: Path) -> None:
    browser.open(every)
    align = "return [...document.querySelectorAll('.dataframe tbody tr:first-child td')].map("
    align += "c => getComputedStyle(c).textAlign)"
    assert browser.run(align) == ["left", "right", "right"]


def test_sections_are_listed_and_links_lead_to_them(browser: Any, every: Path) -> None:
    browser.open(every)
    listed = browser.run("return [...document.querySelectorAll('nav a')].map(a => [a.textContent, a.hash])")
    assert [name for name, _ in listed[:3]] == ["A heading that skips levels", "Text", "A second title"]
    browser.find("nav a")[2].click()
    assert browser.run("return location.hash") == "#A-second-title"
    browser.wait("return Math.abs(document.getElementById('A-second-title').getBoundingClientRect().top) < 60", 5)
    assert browser.run("return document.querySelector('nav .bad').textContent") == "What went wrong failed"


def test_nothing_is_hidden_on_paper_but_folded_code(browser: Any, every: Path) -> None:
    browser.open(every, width=700)
    browser.look(700, 900, "dark", "print")
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.run("return getComputedStyle(document.querySelector('nav')).display") == "none"
    hidden = "return [...document.querySelectorAll('.out')].filter(o => o.offsetHeight === 0).length"
    assert browser.run(hidden) == 0


OURS = sorted(path.stem for path in Path(__file__).parents[2].glob("notebooks/*.ipynb"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in OURS])
def test_a_notebook_of_ours_as_a_report(browser, name, root, tmp_path, monkeypatch, capsys):
    figures = judged(browser, executed(root / "notebooks" / f"{name}.ipynb", tmp_path, monkeypatch))
    with capsys.disabled():
        print(f"\n{name}: {figures}")


def executed(notebook: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Execute a notebook with its defaults and return its report."""
    monkeypatch.chdir(folder)
    assert main(["run", str(notebook), "--out", str(folder / "reports"), "-p", "runs", str(folder / "runs")]) == 0
    [page] = (folder / "reports").glob("*.html")
    return page


def of_paper() -> Any:
    """Return a notebook with what does not fit a sheet of paper as it stands: wide and long tables, pictures."""
    words = [f"column {n}" for n in range(9)]
    wide = tables.table(words, [[f"long words {n} {word}" for word in words] for n in range(30)], "Thirty wide rows")
    short = tables.table(("a", "b"), [("x", n) for n in range(6)], "Six short rows")
    low = f'<div style="max-height:200px;overflow:auto">{wide.html}</div>'
    image = np.zeros((90, 60, 3), np.uint8)
    pages = page_images.row("Three pages", [page_images.picture(image, f"page {n}", width=230) for n in range(3)])
    plot = View(plots.curves([{"step": 1.0, "loss": 2.0}, {"step": 2.0, "loss": 1.0}]).html, "a plot")
    views = [View(low, "low"), short, pages, plot]
    cells = [new_markdown_cell("# Paper\n\nWords.")]
    for number, shown in enumerate(views, 1):
        cells += [new_markdown_cell(f"## Part {number}"), cell(number, "show()", shown._repr_mimebundle_())]
    return new_notebook(cells=cells)


def test_on_paper_nothing_is_cut_and_pages_stand_side_by_side(browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "paper.html"
    page.write_text(document.page(of_paper(), "paper"), encoding="utf-8")
    browser.open(page, width=680)  # a sheet of A4 within its margins
    browser.look(680, 900, "light", "print")
    hidden = """return [...document.querySelectorAll('main *')].filter(one =>
        getComputedStyle(one).overflowX != 'visible' && one.clientWidth
        && (one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 1))
        .map(one => one.outerHTML)"""
    assert browser.run(hidden) == []
    right = "return Math.max(...[...document.querySelectorAll('main td, main figure, main .plot')].map("
    right += "one => one.getBoundingClientRect().right))"
    assert browser.run(right) <= 680
    tops = "return [...document.querySelectorAll('main figure')].map(one => one.getBoundingClientRect().top)"
    assert len(set(browser.run(tops))) == 1, "three pages in one row"
    assert browser.run("return document.querySelectorAll('main thead').length") == 2
    breaks = "return [...document.querySelectorAll('main table')].map(one => getComputedStyle(one).breakInside)"
    assert browser.run(breaks) == ["auto", "avoid"], "a short table stays in one piece, a long one cannot"


def test_on_a_phone_plots_are_legible_and_what_is_cut_off_fades(browser: Any, tmp_path: Path) -> None:
    """Drawn as wide as a phone its words would be four pixels high: it is moved within its own frame instead."""
    page = tmp_path / "phone.html"
    page.write_text(document.page(of_paper(), "phone"), encoding="utf-8")
    browser.open(page, width=360)
    sizes = """return [...document.querySelectorAll('.plot text')].map(one => one.getBoundingClientRect().height)"""
    assert min(browser.run(sizes)) > 7
    assert browser.run("return document.documentElement.scrollWidth - innerWidth") == 0
    # A table that is cut at the edge would look whole; what is above and below it does not move with it.
    faded = """return [...document.querySelectorAll('.wide')].map(one =>
        [one.scrollWidth > one.clientWidth + 1, getComputedStyle(one).maskImage.startsWith('linear-gradient')])"""
    before = browser.run(faded)
    assert {True, False} == {wide for wide, _ in before} and all(wide == cut for wide, cut in before), before
    browser.run("document.querySelectorAll('.wide').forEach(one => one.scrollLeft = one.scrollWidth)")
    browser.run("return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert not any(cut for _, cut in browser.run(faded))
