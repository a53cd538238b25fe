"""`ocrlab report bug`: a bug report that fills itself in from what a failure left; what is unknown is said to be so."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ocrlab import redaction, run_folder
from ocrlab.debug.diagnosis.verdict_files import REPLACED
from ocrlab.reports.bug_report import sections
from ocrlab.reports.bug_report.markup import (
    INSIDE,
    Block,
    Bullets,
    Checks,
    Code,
    Paragraph,
    Section,
    Table,
    markdown,
    page,
)
from ocrlab.reports.bug_report.sources import INCIDENT, Sources, collect

MARK = re.compile(r"\((?:secret|user|host|address)\)")
MOST = 99  # reports of one failure in one folder


@dataclass(frozen=True)
class Report:
    """A bug report: its id, title, status, front matter, both forms, and how many places were replaced in it."""

    id: str
    title: str
    status: str
    front: dict[str, object]
    markdown: str
    html: str
    redacted: int


def build(sources: Sources, verification: Mapping[str, Any] | None = None) -> Report:
    """Return the report; `verified` is what came of running it again, as `rerun.again` returns it."""
    verification = verification or {}
    front = sections.front(sources, verification)
    title, content = str(front["title"]), sections.build_sections(sources, verification)
    clean, count = _clean([Section("", [Paragraph(title)]), *content])
    title = clean[0].blocks[0].text  # type: ignore[union-attr]
    front = redaction.clean({**front, "title": title})
    count = max(
        count, len(MARK.findall(markdown(title, front, clean[1:], "")))
    )  # most were replaced before, on writing
    note = f"Written by ocrlab {front['version']}."
    if count:
        note += f" {count} {'place' if count == 1 else 'places'} replaced: {REPLACED}."
    written = markdown(title, front, clean[1:], note)
    shown = page(title, front, clean[1:], note)
    return Report(str(front["id"]), title, str(front["status"]), front, written, shown, count)


def write(report: Report, folder: Path, stem: str) -> tuple[Path, Path]:
    """Write `stem`.md and .html into `folder`; an older one that differs stays, and this one gets a number.

    Somebody may have written into the older one. Raises OSError.
    """
    texts = (report.markdown, report.html)
    for number in range(1, MOST + 1):
        name = stem if number == 1 else f"{stem}-{number}"
        places = (folder / f"{name}.md", folder / f"{name}.html")
        if all(not path.exists() or _same(path, text) for path, text in zip(places, texts, strict=True)):
            break
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in zip(places, texts, strict=True):
        run_folder.write_text(path, text)
    return places


def write_bug_report(run: Path | str, out: Path | str | None = None) -> tuple[Path, Path]:
    """Write a bug report of a run folder, incident, notebook or log as Markdown and HTML; returns the two paths.

    They go into the folder `out`, by default beside what they are about; an older report stays. Secrets and names
    are replaced. Raises DataError where there is nothing to read, OSError where nothing can be written.
    """
    sources = collect(Path(run))
    return write_beside(build(sources), sources, Path(out) if out is not None else None)


def write_beside(report: Report, sources: Sources, folder: Path | None = None) -> tuple[Path, Path]:
    """Write both forms of a report into `folder`, by default beside what it is about."""
    stem = f"bug-{report.id.removeprefix('OCR-')}"
    if sources.kind in ("notebook", "log"):
        return write(report, folder or sources.path.parent, f"{sources.path.stem}-{stem}")
    return write(report, folder or (sources.path if sources.kind == "incident" else sources.path / INCIDENT), stem)


def _same(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8", errors="replace") == text
    except OSError:
        return False


def _clean(content: list[Section]) -> tuple[list[Section], int]:
    """Return sections in which every text is clean; before they are rendered, as escaping would hide a name."""
    total = 0

    def text(value: str) -> str:
        nonlocal total
        parts = re.split(f"({INSIDE.pattern.replace('(', '(?:')})", value) if INSIDE.search(value) else [value]
        done, count = redaction.clean_and_count([{"": part} for part in parts])
        total += count
        return "".join(part[""] for part in done)

    def clean_block(block: Block) -> Block:
        if isinstance(block, Paragraph):
            return Paragraph(text(block.text))
        if isinstance(block, Bullets):
            return Bullets([text(item) for item in block.items])
        if isinstance(block, Checks):
            return Checks([(done, text(item)) for done, item in block.items])
        if isinstance(block, Table):
            return Table(block.header, [[text(cell) for cell in row] for row in block.rows])
        return Code(text(block.text), block.language, block.title)

    return [replace(section, blocks=[clean_block(block) for block in section.blocks]) for section in content], total
