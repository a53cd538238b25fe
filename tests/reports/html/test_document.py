"""The report of an executed notebook: outcome first, nothing fetched, code folded."""

import base64
import io
import re

import nbformat
import numpy as np
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

from ocrlab.reports.html import document
from ocrlab.reports.notebooks import outcome, results
from ocrlab.reports.notebooks.outcome import Outcome


def cell(source: str, status: str, outputs: list, count: int | None = None) -> nbformat.NotebookNode:
    code_cell = new_code_cell(source, outputs=outputs, execution_count=count)
    code_cell.metadata["papermill"] = {"status": status, "duration": 1.25}
    return code_cell


RESULT = {"name": "dies", "outcome": "CRASHED", "sentence": "The kernel died of SIGSEGV in cell [2]."}


@pytest.fixture(scope="module")
def page() -> str:
    top_outcome = Outcome("dies", "CRASHED", "The kernel died of SIGSEGV in cell [2].")
    top = new_output("display_data", data={**outcome.view(top_outcome)._repr_mimebundle_(), results.MIME: RESULT})
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "x"}, "text/html": "<p>static side</p>"}
    cells = [
        new_markdown_cell("# Does it &lt;die&gt;?\n\nLook."),
        cell("setup()", "completed", [top], 1),
        cell("die()", "failed", [new_output("error", ename="KernelDied", evalue="x", traceback=["gone <b>"])], 2),
        cell("show()", "pending", [new_output("display_data", data=widget)]),
    ]
    return document.page(new_notebook(cells=cells, metadata={"ocrlab": {"redacted": 3}}))


def test_the_outcome_comes_first_and_once(page: str) -> None:
    assert page.index("<h1>") < page.index("CRASHED") < page.index("</header>") < page.index("<main>")
    assert page.count("The kernel died of SIGSEGV") == 1


def test_nothing_is_fetched_and_no_script_is_needed(page: str) -> None:
    assert not re.search(r"<script|@import|url\(|src=", page)
    assert set(re.findall(r'href="([^"]*)"', page)) == {"data:,", "#code-2"}  # no icon, so that none is asked for
    assert "default-src 'none'" in page


def test_code_is_folded_and_says_how_it_went(page: str) -> None:
    summaries = re.findall(r'<details class="code (\w*)"( open)?>\s*<summary>(.*?)</summary>', page)
    assert summaries == [
        ("completed", "", "Code [1] · 1.2 s"),
        ("failed", " open", "Code [2] · failed · 1.2 s"),
        ("pending", "", "Code: this cell never ran"),
    ]


def test_texts_are_escaped_and_widgets_show_their_static_side(page: str) -> None:
    assert "<title>Does it &lt;die&gt;?</title>" in page
    assert "gone &lt;b&gt;" in page
    assert "static side" in page
    assert "model_id" not in page


def test_a_page_is_clean_also_where_nobody_cleaned_the_notebook() -> None:
    output = new_output("stream", name="stdout", text="db_password = hunter2hunter2")
    page = document.page(new_notebook(cells=[cell("login()", "completed", [output], 1)]))
    assert "hunter2" not in page
    assert "1 value replaced" in page


def test_the_sections_are_listed_with_how_they_went() -> None:
    cells = [new_markdown_cell("# T")]
    for name, status in (("One", "completed"), ("Two", "failed"), ("Three", "pending")):
        cells += [new_markdown_cell(f"## {name}"), cell("x", status, [])]
    page = document.page(new_notebook(cells=cells))
    listed = re.findall(r'<li class="(\w*)"><a href="#(\w+)">\w+</a>(.*?)</li>', page)
    assert [(kind, name) for kind, name, _ in listed] == [("", "One"), ("bad", "Two"), ("none", "Three")]
    assert [ending for *_, ending in listed] == [
        f" <small>{words}</small>" for words in ("0:01", "failed", "never ran")
    ]


def test_a_large_notebook_becomes_a_small_report() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (900, 1200, 3), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(noise).save(data, "png")
    picture = new_output("display_data", data={"image/png": base64.b64encode(data.getvalue()).decode()})
    words = new_output("stream", name="stdout", text="".join(f"line {n}\n" for n in range(300_000)))
    table = new_output("display_data", data={"text/html": f"<p>{'word ' * 400_000}</p>"})
    page = document.page(new_notebook(cells=[cell("x", "completed", [picture, words, table])]))
    assert 10_000 < len(page.encode()) <= document.LARGEST
    assert "below 2 MB" in page
    assert "data:image/webp" in page
    assert "more characters are in the notebook" in page
