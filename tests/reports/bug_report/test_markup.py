"""Both forms of a bug report: whatever a stranger's log holds is neither Markdown nor HTML."""

from __future__ import annotations

import re

import pytest

from ocrlab.reports.bug_report.markup import (
    Bullets,
    Checks,
    Code,
    Paragraph,
    Section,
    Table,
    code,
    html,
    inline,
    markdown,
    page,
)

EVIL = "</code></pre><script>alert(1)</script> ``` `x` | **b** @someone #12 [a](b) <!-- \x1b[31m\u202e\x00"


def every(text: str) -> list[Section]:
    blocks = [
        Paragraph(f"words {text} {code(text)} end"),
        Bullets([text, code(text)]),
        Table(["a", "b"], [[text, code(text)]]),
        Code(text, "text", "folded <b>"),
        Code(text),
        Checks([(True, text), (False, code(text))]),
    ]
    return [Section("One", blocks)]


def test_in_html_everything_is_escaped() -> None:
    html_page = page(EVIL, {"id": EVIL, "tags": [EVIL]}, every(EVIL), EVIL)
    assert (
        "<script" not in html_page and "alert(1)" in html_page and "\x1b" not in html_page and "\u202e" not in html_page
    )
    tags = set(re.findall(r"<(/?\w+)", html_page))
    assert {"script", "/script", "b", "/b"}.isdisjoint(tags)
    assert "default-src 'none'" in html_page and html_page.count("<h1>") == 1


def test_in_markdown_words_mean_nothing_and_code_stays_code() -> None:
    text = markdown("t", {"id": "X"}, every(EVIL), "note")
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
    sections = [Section("S", [Paragraph(f"in {code('f')}, at"), Checks([(True, "done"), (False, "open")])])]
    text = markdown("T", front, [*sections, Section("L", [Code("x\ny", "sh", "long")])], "n")
    assert text.startswith('---\ntitle: "a: \'b\'"\nid: OCR-1\ntags: [x.y, z w]\ndate: "2026-01-02T03:04:05"\n---\n')
    assert "in `f`, at" in text and "- [x] done\n- [ ] open" in text
    assert "<details>\n<summary>long</summary>\n\n```sh\nx\ny\n```\n\n</details>" in text


@pytest.mark.parametrize("text, shown", [("a`b", "``a`b``"), ("`a", "`` `a ``"), ("a\nb  c", "`a b c`"), ("", "")])
def test_code_with_backticks_and_lines(text: str, shown: str) -> None:
    assert markdown("T", {}, [Section("S", [Paragraph(code(text))])], "").splitlines()[7] == shown


def test_marks_are_read_by_people_who_see_no_colour() -> None:
    text = html([Section("P", [Checks([(True, "a"), (False, "b")])])])
    assert "✓</span> a <i>done</i>" in text and "○</span> b <i>not done</i>" in text
    assert inline(f"a < {code('<x>')}") == "a &lt; <code>&lt;x&gt;</code>"
