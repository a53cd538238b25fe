"""What a bug report is made of: sections of paragraphs, lists, tables, code and check marks; and both its forms.

A text may hold `code` between the marks that `code()` sets. Everything else in it is words: whatever a stranger's log
holds, no form of it is read as Markdown or HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape

from ocrlab.reports.html import stylesheet

OPEN, CLOSE = "\x02", "\x03"
INSIDE = re.compile(f"{OPEN}([^{CLOSE}]*){CLOSE}")
UNPRINTABLE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]")
SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~@&])")
SHEET = """
.bug { max-width: 1000px; }
.bug .facts { display: flex; flex-wrap: wrap; gap: 4px 22px; font-size: 14px; margin: 0; }
.facts div { display: flex; gap: 6px; }
.facts dt { opacity: .75; }
.facts dd { margin: 0; overflow-wrap: anywhere; }
.bug code { background: var(--ground); border-radius: 3px; padding: 1px 5px; }
.bug pre { background: var(--ground); border-radius: 6px; padding: 12px 16px; margin: 8px 0; }
.bug p { margin: 8px 0; }
.bug p, .bug li { overflow-wrap: anywhere; }
.bug th[scope=row] { font-weight: 400; }
.wide { overflow-x: auto; }
.bug summary { font-size: 14px; margin: 6px 0; }
.checks { list-style: none; padding: 0; }
.checks span { display: inline-block; width: 1.4em; font-weight: 700; }
.checks i { font-style: normal; font-size: 13px; opacity: .75; margin-left: 6px; }
"""  # what a bug report has besides the style of all reports


@dataclass(frozen=True)
class Paragraph:
    """Words."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """Things, one a line."""

    items: list[str]


@dataclass(frozen=True)
class Table:
    """Rows below a header; cells are texts."""

    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Code:
    """Lines as they are; folded below `title` where there is one."""

    text: str
    language: str = ""
    title: str = ""


@dataclass(frozen=True)
class Checks:
    """What is done and what is not, each with a word on how that is known."""

    items: list[tuple[bool, str]]


Block = Paragraph | Bullets | Table | Code | Checks


@dataclass(frozen=True)
class Section:
    """One heading with what stands below it."""

    title: str
    blocks: list[Block] = field(default_factory=list)


def code(text: object) -> str:
    """Return a text as code inside a paragraph, a list or a cell: in one line, and nothing in it means anything."""
    return f"{OPEN}{' '.join(plain(str(text)).split())}{CLOSE}"


def ticked(text: str) -> str:
    """Return a text of ours whose `code` stands between backticks with marks instead."""
    parts = text.split("`")
    return "".join(code(part) if index % 2 else part for index, part in enumerate(parts)) if len(parts) % 2 else text


def plain(text: str) -> str:
    """Return a text without colour codes, control characters and those that turn the direction of writing."""
    return UNPRINTABLE.sub("", text)


def markdown(title: str, front: Mapping[str, object], sections: Iterable[Section], note: str) -> str:
    """Return a report as Markdown that pastes into an issue: the front matter is YAML, what is long is folded."""
    parts = ["---", *(f"{name}: {_yaml(value)}" for name, value in front.items()), "---"]
    parts += ["", f"# {_markdown_text(title)}"]
    for section in sections:
        parts += ["", f"## {section.title}"]
        for block in section.blocks:
            parts += ["", *_markdown(block)]
    return "\n".join([*parts, "", "---", "", _markdown_text(note), ""])


def html(sections: Iterable[Section]) -> str:
    """Return sections as HTML, in which everything is escaped."""
    parts = []
    for section in sections:
        parts.append(f"<h2>{escape(section.title)}</h2>")
        parts += [_html(block) for block in section.blocks]
    return "\n".join(parts)


def page(title: str, front: Mapping[str, object], sections: Iterable[Section], note: str) -> str:
    """Return a whole page; every text in it is escaped."""
    texts = {
        name: ", ".join(map(str, value)) if isinstance(value, list) else str(value) for name, value in front.items()
    }
    pairs = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(plain(text))}</dd></div>"
        for name, text in texts.items()
        if name != "title"
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'"  # whatever a stranger's text holds, nothing is fetched
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><meta '
        f'http-equiv="Content-Security-Policy" content="{policy}"><title>{inline(title)}</title>'
        f"<style>{stylesheet.sheet()}{SHEET}</style>"
    )
    top = f'<header><h1>{inline(title)}</h1><dl class="facts">{pairs}</dl></header>'
    body = f"{top}<main class='html'>{html(sections)}</main><footer>{inline(note)}</footer>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body class="bug">{body}</body></html>\n'


def inline(text: str) -> str:
    """Return a text with its code as HTML."""
    done, parts = 0, []
    for match in INSIDE.finditer(text):
        parts += [escape(plain(text[done : match.start()])), f"<code>{escape(match[1])}</code>"]
        done = match.end()
    return "".join([*parts, escape(plain(text[done:]))])


def _yaml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_yaml(item) for item in value)}]"
    text = plain(str(value)).replace("\\", "\\\\").replace('"', "'")
    return text if re.fullmatch(r"[A-Za-z][\w. -]*\w|\w", text) and ": " not in text else f'"{text}"'


def _markdown_text(text: str, cell: bool = False) -> str:
    """Return a text as Markdown: words escaped, code between backticks that it does not hold itself."""
    done, parts = 0, []
    for match in INSIDE.finditer(text):
        parts += [_escaped(text[done : match.start()]), _backticks(match[1], cell)]
        done = match.end()
    return "".join([*parts, _escaped(text[done:])])


def _escaped(text: str) -> str:
    return SPECIAL.sub(r"\\\1", re.sub(r"\s+", " ", plain(text)))


def _backticks(text: str, cell: bool) -> str:
    if not text:
        return ""
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if text[0] == "`" or text[-1] == "`" else ""
    shown = text.replace("|", "\\|") if cell else text  # a table's cell ends at a bar even inside code
    return f"{ticks}{space}{shown}{space}{ticks}"


def _markdown(block: Block) -> list[str]:
    if isinstance(block, Paragraph):
        return [_markdown_text(block.text)]
    if isinstance(block, Bullets):
        return [f"- {_markdown_text(item)}" for item in block.items]
    if isinstance(block, Checks):
        return [f"- [{'x' if done else ' '}] {_markdown_text(text)}" for done, text in block.items]
    if isinstance(block, Table):
        rows = [[_markdown_text(cell, cell=True) for cell in row] for row in block.rows]
        return [f"| {' | '.join(row)} |" for row in [block.header, ["---"] * len(block.header), *rows]]
    text = plain(block.text).rstrip("\n")
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    lines = [f"{fence}{block.language}", text, fence]
    if block.title:
        return ["<details>", f"<summary>{escape(block.title)}</summary>", "", *lines, "", "</details>"]
    return lines


def _html(block: Block) -> str:
    if isinstance(block, Paragraph):
        return f"<p>{inline(block.text)}</p>"
    if isinstance(block, Bullets):
        return f"<ul>{''.join(f'<li>{inline(item)}</li>' for item in block.items)}</ul>"
    if isinstance(block, Checks):
        return f'<ul class="checks">{"".join(_check(done, text) for done, text in block.items)}</ul>'
    if isinstance(block, Table):
        head = "".join(f'<th scope="col">{inline(cell)}</th>' for cell in block.header)
        body = "".join(f"<tr>{_row(row, any(block.header))}</tr>" for row in block.rows)
        top = f"<thead><tr>{head}</tr></thead>" if any(block.header) else ""
        return f'<div class="wide"><table>{top}<tbody>{body}</tbody></table></div>'
    shown = f'<pre tabindex="0">{escape(plain(block.text).rstrip())}</pre>'
    return f"<details><summary>{escape(block.title)}</summary>{shown}</details>" if block.title else shown


def _row(cells: list[str], headed: bool) -> str:
    """Return the cells of a row; where no header says what they are, the first one does."""
    shown = [f"<td>{inline(cell)}</td>" for cell in cells]
    if not headed:
        shown[0] = f'<th scope="row">{inline(cells[0])}</th>'
    return "".join(shown)


def _check(done: bool, text: str) -> str:
    sign, word = ("✓", "done") if done else ("○", "not done")
    mark = f'<span aria-hidden="true">{sign}</span>'
    return f'<li class="{"done" if done else "open"}">{mark} {inline(text)} <i>{word}</i></li>'
