"""What a bug report is made of, and both its forms: Markdown for an issue, and one HTML page.

A text may hold `code` between the marks that `code()` sets. Everything else in it is words: whatever a stranger's log
holds, neither form reads it as Markdown or HTML.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from html import escape

from ocrlab.reports.view import load_css, report_css

OPEN, CLOSE = "\x02", "\x03"
CODE = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}")
UNPRINTABLE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]")
SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~@&])")
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # whatever a stranger's text holds, nothing is fetched


@dataclass(frozen=True)
class Table:
    """Rows of texts below a header; where no header says what the cells are, the first of each row does."""

    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Code:
    """Lines as they are; folded below `title` if it has one."""

    text: str
    language: str = ""
    title: str = ""


Block = str | list[str] | dict[str, bool] | Table | Code  # a paragraph, a list, check marks, ...


@dataclass(frozen=True)
class Section:
    """A heading and the blocks below it."""

    title: str
    blocks: list[Block] = field(default_factory=list)


def code(text: object) -> str:
    """Return a text as code inside a paragraph, a list or a cell: on one line, and nothing in it has a meaning."""
    return f"{OPEN}{' '.join(plain(str(text)).split())}{CLOSE}"


def ticked(text: str) -> str:
    """Return a text of ocrlab with marks instead of the backticks around its code."""
    parts = text.split("`")
    return "".join(code(part) if index % 2 else part for index, part in enumerate(parts)) if len(parts) % 2 else text


def plain(text: str) -> str:
    """Return a text without colour codes, control characters and those that change the direction of writing."""
    return UNPRINTABLE.sub("", text)


def map_texts(block: Block, change: Callable[[str], str]) -> Block:
    """Return a block in which `change` was applied to every text that can come from a stranger."""
    if isinstance(block, str):
        return change(block)
    if isinstance(block, list):
        return [change(item) for item in block]
    if isinstance(block, dict):
        return {change(text): done for text, done in block.items()}
    if isinstance(block, Table):
        return Table(block.header, [[change(cell) for cell in row] for row in block.rows])
    return Code(change(block.text), block.language, block.title)


def markdown(title: str, front: Mapping[str, object], sections: Iterable[Section], note: str) -> str:
    """Return a report as Markdown to paste into an issue: the front matter is YAML, long parts are folded."""
    parts = ["---", *(f"{name}: {_yaml(value)}" for name, value in front.items()), "---"]
    parts += ["", f"# {_markdown_text(title)}"]
    for section in sections:
        parts += ["", f"## {section.title}"]
        for block in section.blocks:
            parts += ["", *_markdown(block)]
    return "\n".join([*parts, "", "---", "", _markdown_text(note), ""])


def page(title: str, front: Mapping[str, object], sections: Iterable[Section], note: str) -> str:
    """Return a report as an HTML page; every text in it is escaped."""
    facts = ((name, value) for name, value in front.items() if name != "title")
    texts = ((name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)) for name, value in facts)
    pairs = "".join(f"<div><dt>{escape(name)}</dt><dd>{inline(text)}</dd></div>" for name, text in texts)
    body = "\n".join(
        "\n".join([f"<h2>{escape(section.title)}</h2>", *map(_html, section.blocks)]) for section in sections
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><title>{inline(title)}</title>'
        f"<style>{report_css()}{load_css('bug_report')}</style></head>"
        '<body class="bug">'
        f'<header><h1>{inline(title)}</h1><dl class="facts">{pairs}</dl></header>'
        f'<main class="html">{body}</main><footer>{inline(note)}</footer></body></html>\n'
    )


def inline(text: str) -> str:
    """Return a text with its code as HTML."""
    parts = enumerate(CODE.split(text))
    return "".join(f"<code>{escape(part)}</code>" if index % 2 else escape(plain(part)) for index, part in parts)


def _html(block: Block) -> str:
    if isinstance(block, str):
        return f"<p>{inline(block)}</p>"
    if isinstance(block, list):
        return f"<ul>{''.join(f'<li>{inline(item)}</li>' for item in block)}</ul>"
    if isinstance(block, dict):
        marks = {True: ("done", "✓", "done"), False: ("open", "○", "not done")}
        items = ((*marks[done], inline(text)) for text, done in block.items())
        rows = (
            f'<li class="{kind}"><span aria-hidden="true">{sign}</span> {text} <i>{word}</i></li>'
            for kind, sign, word, text in items
        )
        return f'<ul class="checks">{"".join(rows)}</ul>'
    if isinstance(block, Table):
        named = any(block.header)
        head = "".join(f'<th scope="col">{inline(cell)}</th>' for cell in block.header)
        first, end = ("<td>", "</td>") if named else ('<th scope="row">', "</th>")
        rows = (
            f"<tr>{first}{inline(row[0])}{end}{''.join(f'<td>{inline(cell)}</td>' for cell in row[1:])}</tr>"
            for row in block.rows
        )
        top = f"<thead><tr>{head}</tr></thead>" if named else ""
        return f'<div class="wide"><table>{top}<tbody>{"".join(rows)}</tbody></table></div>'
    lines = f'<pre tabindex="0">{escape(plain(block.text).rstrip())}</pre>'
    return f"<details><summary>{escape(block.title)}</summary>{lines}</details>" if block.title else lines


def _markdown(block: Block) -> list[str]:
    if isinstance(block, str):
        return [_markdown_text(block)]
    if isinstance(block, list):
        return [f"- {_markdown_text(item)}" for item in block]
    if isinstance(block, dict):
        return [f"- [{'x' if done else ' '}] {_markdown_text(text)}" for text, done in block.items()]
    if isinstance(block, Table):
        rows = [[_markdown_text(cell, in_cell=True) for cell in row] for row in block.rows]
        return [f"| {' | '.join(row)} |" for row in [block.header, ["---"] * len(block.header), *rows]]
    text = plain(block.text).rstrip("\n")
    fence = "`" * max(3, _longest_run_of_backticks(text) + 1)
    lines = [f"{fence}{block.language}", text, fence]
    if block.title:
        return ["<details>", f"<summary>{escape(block.title)}</summary>", "", *lines, "", "</details>"]
    return lines


def _markdown_text(text: str, in_cell: bool = False) -> str:
    """Return a text as Markdown: words escaped, code between more backticks than it holds."""

    def quoted(part: str) -> str:
        ticks = "`" * (_longest_run_of_backticks(part) + 1)
        space = " " if "`" in (part[:1], part[-1:]) else ""
        inside = part.replace("|", "\\|") if in_cell else part  # a bar ends a cell of a table even inside code
        return f"{ticks}{space}{inside}{space}{ticks}" if part else ""

    def escaped(part: str) -> str:
        return SPECIAL.sub(r"\\\1", re.sub(r"\s+", " ", plain(part)))

    return "".join(quoted(part) if index % 2 else escaped(part) for index, part in enumerate(CODE.split(text)))


def _longest_run_of_backticks(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def _yaml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml, value))}]"
    text = plain(str(value)).replace("\\", "\\\\").replace('"', "'")
    return text if re.fullmatch(r"[A-Za-z][\w. -]*\w|\w", text) and ": " not in text else f'"{text}"'
