"""`ocrlab report bug`: a bug report that fills itself in from what a failure left, and states what is unknown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ocrlab import redaction, run_folder, safe_read
from ocrlab.reports.bug_report import sections
from ocrlab.reports.bug_report.markup import CLOSE, CODE, OPEN, Section, map_texts, markdown, page
from ocrlab.reports.bug_report.sources import INCIDENT, Sources, collect

REPLACEMENT = re.compile(r"\((?:secret|user|host|address)\)")
MOST = 99  # reports of one failure in one folder


@dataclass(frozen=True)
class Report:
    """A bug report: its front matter (title, id, status and so on), both forms, and how many places were replaced."""

    front: dict[str, object]
    markdown: str
    html: str
    redacted: int


def build(sources: Sources, verification: Mapping[str, Any] | None = None) -> Report:
    """Return the report; `verification` is the result of `trial.rerun_command`."""
    front = sections.front(sources, verification or {})
    content = sections.build_sections(sources, verification or {})
    [named, *clean], count = _clean([Section("", [str(front["title"])]), *content])
    title = str(named.blocks[0])
    front = redaction.clean({**front, "title": title})
    # Most places were replaced before, when the files were written.
    count = max(count, len(REPLACEMENT.findall(markdown(title, front, clean, ""))))
    note = f"Written by ocrlab {front['version']}. {redaction.note(count)}"
    forms = markdown(title, front, clean, note), page(title, front, clean, note)
    return Report(front, *forms, count)


def _clean(content: list[Section]) -> tuple[list[Section], int]:
    """Return sections in which every text is clean; before they are rendered, because escaping would hide a name."""
    total = 0

    def clean(text: str) -> str:
        nonlocal total
        parts, count = redaction.clean_and_count([{"": part} for part in CODE.split(text)])
        total += count
        return "".join(f"{OPEN}{part['']}{CLOSE}" if index % 2 else part[""] for index, part in enumerate(parts))

    cleaned = [replace(section, blocks=[map_texts(block, clean) for block in section.blocks]) for section in content]
    return cleaned, total


def write(report: Report, folder: Path, stem: str) -> tuple[Path, Path]:
    """Write `stem`.md and .html into `folder`; an older report that differs stays, and this one gets a number.

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


def _same(path: Path, text: str) -> bool:
    try:
        return safe_read.read_text(path) == text
    except OSError:
        return False


def write_bug_report(run: Path | str, out: Path | str | None = None) -> tuple[Path, Path]:
    """Write a bug report of a run folder, incident, notebook or log as Markdown and HTML; returns the two paths.

    They go into the folder `out`, by default next to what they describe; an older report stays. Secrets and names
    are replaced. Raises DataError if there is nothing to read, OSError if nothing can be written.
    """
    sources = collect(Path(run))
    return write_beside(build(sources), sources, Path(out) if out is not None else None)


def write_beside(report: Report, sources: Sources, folder: Path | None = None) -> tuple[Path, Path]:
    """Write both forms of a report into `folder`, by default next to what it describes."""
    stem = f"bug-{str(report.front['id']).removeprefix('OCR-')}"
    if sources.kind in ("notebook", "log"):
        return write(report, folder or sources.path.parent, f"{sources.path.stem}-{stem}")
    return write(report, folder or (sources.path if sources.kind == "incident" else sources.path / INCIDENT), stem)
