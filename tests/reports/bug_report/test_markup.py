"""Both forms of a bug report: whatever a stranger's log holds is neither Markdown nor HTML."""

from __future__ import annotations

import re

import pytest

from ocrlab.reports.bug_report.markup import Code, Section, Table, code, markdown, page

EVIL = "</code></pre><script>alert(1)</script> ``` `x` | **b** @someone #12 [a](b) <!-- \x1b[31m\u202e\x00"
BLOCKS = [
    f"words {EVIL} {code(EVIL)} end",
    [EVIL, code(EVIL)],
    Table(["a", "b"], [[EVIL, code(EVIL)]]),
    Code(EVIL, "text", "folded <b>"),
    Code(EVIL),
    {EVIL: True, code(EVIL): False},
]


def test_in_html_everything_is_escaped() -> None:
    html = page(EVIL, {"id": EVIL, "tags": [EVIL]}, [Section("One", BLOCKS)], EVIL)
    assert "<script" not in html and "alert(1)" in html and "\x1b" not in html and "\u202e" not in html
    assert {"script", "/script", "b", "/b"}.isdisjoint(re.findall(r"<(/?\w+)", html))
    assert "default-src 'none'" in html and html.count("<h1>") == 1
    assert "✓</span> " in html and " <i>done</i>" in html and " <i>not done</i>" in html, "without colours too"


def test_in_markdown_words_mean_nothing_and_code_stays_code() -> None:
    text = markdown("t", {"id": "X"}, [Section("One", BLOCKS)], "note")
    outside = re.sub(r"^(`{3,})[\s\S]*?\n\1$", "", text, flags=re.MULTILINE)
    outside = re.sub(r"(?<![`\\])(`+)(?!`).+?(?<![`\\])\1(?!`)", "", outside)
    assert not re.search(r"(?<!\\)<script", outside)
    assert not re.search(r"(?<!\\)(?:@someone|#12|\*\*b|\[a\])", outside)
    fences = re.findall(r"^`{3,}", text, re.MULTILINE)
    assert fences == ["````"] * 4, "a longer fence than any in the text, opened and closed"
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 3 and all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in rows)


def test_what_pastes_into_an_issue() -> None:
    front = {"title": 'a: "b"', "id": "OCR-1", "tags": ["x.y", "z w"], "date": "2026-01-02T03:04:05"}
    sections = [Section("S", [f"in {code('f')}, at", {"done": True, "open": False}])]
    text = markdown("T", front, [*sections, Section("L", [Code("x\ny", "sh", "long")])], "n")
    assert text.startswith('---\ntitle: "a: \'b\'"\nid: OCR-1\ntags: [x.y, z w]\ndate: "2026-01-02T03:04:05"\n---\n')
    assert "in `f`, at" in text and "- [x] done\n- [ ] open" in text
    assert "<details>\n<summary>long</summary>\n\n```sh\nx\ny\n```\n\n</details>" in text


@pytest.mark.parametrize("text, shown", [("a`b", "``a`b``"), ("`a", "`` `a ``"), ("a\nb  c", "`a b c`"), ("", "")])
def test_code_with_backticks_and_lines(text: str, shown: str) -> None:
    assert markdown("T", {}, [Section("S", [code(text)])], "").splitlines()[7] == shown
