"""The report of an executed notebook: outcome first, nothing fetched, code folded."""

from __future__ import annotations

import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from ocrlab.report import html, outcome, results
from ocrlab.report.outcome import Outcome


def cell(source: str, status: str, outputs: list, count: int | None = None) -> nbformat.NotebookNode:
    made = new_code_cell(source, outputs=outputs, execution_count=count)
    made.metadata["papermill"] = {"status": status, "duration": 1.25}
    return made


@pytest.fixture(scope="module")
def page() -> str:
    said = Outcome("dies", "CRASHED", "The kernel died of SIGSEGV in cell [2].")
    top = new_output("display_data", data={**outcome.view(said)._repr_mimebundle_(), results.MIME: {"name": "dies"}})
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "x"}, "text/html": "<p>static side</p>"}
    cells = [
        new_markdown_cell("# Does it <die>?\n\nLook."),
        cell("setup()", "completed", [top], 1),
        cell("die()", "failed", [new_output("error", ename="KernelDied", evalue="x", traceback=["gone <b>"])], 2),
        cell("show()", "pending", [new_output("display_data", data=widget)]),
    ]
    return html.page(new_notebook(cells=cells, metadata={"ocrlab": {"redacted": 3}}))


def test_the_outcome_comes_first_and_once(page: str) -> None:
    assert page.index("CRASHED") < page.index("</header>") < page.index("<main>")
    assert page.count("The kernel died of SIGSEGV") == 1


def test_nothing_is_fetched_and_no_script_is_needed(page: str) -> None:
    assert not re.search(r"<script|<link|@import|url\(|src=|href=", page)


def test_code_is_folded_and_says_how_it_went(page: str) -> None:
    summaries = re.findall(r'<details class="code (\w*)"( open="")?>\s*<summary>(.*?)</summary>', page)
    assert summaries == [
        ("completed", "", "Code [1] · 1.2 s"),
        ("failed", ' open=""', "Code [2] · failed · 1.2 s"),
        ("pending", "", "Code: this cell never ran"),
    ]


def test_texts_are_escaped_and_widgets_show_their_static_side(page: str) -> None:
    assert "<title>Does it &lt;die&gt;?</title>" in page
    assert "gone &lt;b&gt;" in page
    assert "static side" in page
    assert "model_id" not in page


def test_it_says_how_much_was_replaced_and_stays_small(page: str) -> None:
    assert "named this machine or a secret: 3 texts" in page
    assert len(page) < 20_000


def test_a_notebook_that_says_nothing_of_itself_is_incomplete() -> None:
    page = html.page(new_notebook(cells=[new_markdown_cell("# Mine"), cell("1", "completed", [], 1)]))
    assert page.index("INCOMPLETE") < page.index("<main>")
    assert "PASS" not in page
