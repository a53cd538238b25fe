"""Markdown in a report: headings in order, formulas without scripts, pictures of the notebook or its folder."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from ocrlab.reports.html import markdown


def levels(*sources: str, several: bool = False) -> tuple[str, list[int]]:
    headings = markdown.Headings(several)
    html = "".join(headings.put(markdown.markdown(source, {}, None)) for source in sources)
    return headings.title, [int(level) for level in re.findall(r"<h(\d) ", html)]


@pytest.mark.parametrize(
    ("source", "several", "title", "wanted"),
    [
        ("# A\n\n## B\n\n### C\n\n## D", False, "A", [2, 3, 2]),
        ("# A\n\n#### B\n\n###### C", False, "A", [2, 3]),
        ("## B\n\n# A\n\n## C", False, "A", [2, 2]),
        ("# A\n\n## B\n\n# C\n\n## D", True, "A", [2, 2, 3]),
        ("text", False, "", []),
    ],
)
def test_a_single_title_and_no_level_is_skipped(source: str, several: bool, title: str, wanted: list[int]) -> None:
    assert levels(source, several=several) == (title, wanted)


def test_titles_are_counted_in_prose_only() -> None:
    cells = [new_markdown_cell("# A\n\n<h1>B</h1>"), new_code_cell("# no title"), new_markdown_cell("```\n# code\n```")]
    assert markdown.count_titles(new_notebook(cells=cells)) == 2


def test_names_of_places_are_unique_and_speak() -> None:
    headings = markdown.Headings()
    html = headings.put(markdown.markdown("# T\n\n## Two words\n\n## Two words", {}, None))
    assert re.findall(r'id="([^"]*)"', html) == ["Two-words", "Two-words-2"]
    assert headings.listed == [("Two-words", "Two words"), ("Two-words-2", "Two words")]


@pytest.mark.parametrize(
    ("tex", "part"),
    [
        ("x^2", "<msup>"),
        ("$$\\frac{a}{b}$$", "<mfrac>"),
        ("\\[ \\sqrt{x} \\]", "<msqrt>"),
        ("\\und{", '<code class="tex">'),
    ],
)
def test_formulas_are_mathml_or_as_they_were_written(tex: str, part: str) -> None:
    assert part in markdown.formula(tex)


def test_pictures_of_the_notebook_and_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "own.png").write_bytes(b"picture")
    code = base64.b64encode(b"picture").decode()
    html = markdown.markdown(
        "![a](own.png) ![b](attachment:x.png) ![c](no.png)", {"x.png": {"image/png": "AAAA"}}, tmp_path
    )
    assert f'src="data:image/png;base64,{code}" alt="a"' in html
    assert 'src="data:image/png;base64,AAAA" alt="b"' in html
    assert "c: not in this file" in html


def test_a_picture_that_is_too_large_stays_outside(tmp_path: Path) -> None:
    (tmp_path / "own.png").write_bytes(b"x" * (markdown.LARGEST + 1))
    assert "not in this file" in markdown.markdown("![a](own.png)", {}, tmp_path)
