"""`ocrlab samples check`: what is wrong with a data set; a table, contact sheets, and a cleaned copy when asked."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ocrlab.cli import output_paths, progress
from ocrlab.cli.parser import Answer, add_json, table
from ocrlab.errors import ConfigError
from ocrlab.records import SCHEMA, finite

if TYPE_CHECKING:
    from ocrlab.data.audit import Finding

SHOWN = 6  # examples of a kind in the table
WHAT = "find boxes and pages that are probably wrong, and write a cleaned copy"
EXAMPLES = """
  ocrlab samples check receipts                           all splits; the sheets go to reports/check-receipts
  ocrlab samples check receipts --split val --out sheets
  ocrlab samples check receipts --clean receipts-clean    also write a copy without what is certainly wrong
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the words of this command."""
    parser.add_argument("data", type=Path, metavar="DATA", help="data folder, or one annotation file")
    parser.add_argument("--split", nargs="+", metavar="NAME", help="splits to look at (all)")
    parser.add_argument(
        "--out", type=output_paths.path, metavar="DIR", help="where contact sheets go (reports/check-DATA)"
    )
    parser.add_argument(
        "--clean", type=output_paths.path, metavar="DIR", help="write a cleaned copy to this new folder"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> Answer:
    """Check a data set; the exit status is 1 if something must be wrong or probably is, else 0.

    Nothing is overwritten: sheets of an earlier check in --out are an error, and without --out a new folder is made.
    """
    from ocrlab.data import audit
    from ocrlab.data.audit import repaired_copy

    if args.clean is not None and args.clean.exists() and (not args.clean.is_dir() or any(args.clean.iterdir())):
        raise ConfigError(f"--clean {args.clean} is there already", need="a new or empty folder", do="Name another one")
    out = args.out or _unused_folder(Path("reports") / f"check-{args.data.resolve().stem}")
    if out.exists() and (not out.is_dir() or _sheets(out)):
        raise ConfigError(
            f"--out {out} holds sheets already", need="a folder without sheet-NNN.png", do="Name another one"
        )
    output_paths.folder(out, "--out")
    if args.clean is not None:
        output_paths.folder(args.clean, "--clean")
    with progress.page_progress("checking") as tick:
        findings = audit.check(args.data, args.split, tick)
    problems = [finding for finding in findings if finding.severity != "note"]
    pictures = draw(args.data, problems, args.split, out) if problems else []
    record = {
        "schema": SCHEMA,
        "data": str(args.data),
        "counts": _counts(findings),
        "findings": [finite(asdict(finding)) for finding in findings],
        "pictures": [str(picture) for picture in pictures],
    }
    texts = [_table(findings) if findings else "nothing is wrong", *_picture_lines(pictures)]
    if args.clean is not None:
        done = repaired_copy.copy(args.data, args.clean, findings, args.split)
        record["clean"] = {
            "folder": str(done.folder),
            "pages": done.pages,
            "boxes": done.boxes,
            "changes": done.changes,
        }
        counts = ", ".join(f"{count} {what}" for what, count in sorted(done.counts.items())) or "nothing was changed"
        texts.append(f"{done.pages} pages with {done.boxes} boxes in {done.folder}: {counts} (CHANGES.txt)")
    return Answer(record, "\n".join(texts), status=1 if problems else 0)


def draw(data: Path, findings: list[Finding], splits: Sequence[str] | None, out: Path) -> list[Path]:
    """Write the contact sheets of findings as `out`/sheet-001.png and so on, and return their paths."""
    import cv2

    from ocrlab import run_folder
    from ocrlab.data.audit import contact_sheet

    out.mkdir(parents=True, exist_ok=True)
    pictures = []
    for number, picture in enumerate(contact_sheet.sheets(data, findings, splits), 1):
        place = out / f"sheet-{number:03}.png"
        _, encoded = cv2.imencode(".png", picture[..., ::-1])
        run_folder.write_bytes(place, encoded.tobytes())
        pictures.append(place)
    return pictures


def _sheets(folder: Path) -> list[Path]:
    return sorted(folder.glob("sheet-*.png"))


def _unused_folder(folder: Path) -> Path:
    """Return `folder`, or the first of folder-2, folder-3 ... without sheets of an earlier check."""
    number = 2
    free = folder
    while free.exists() and (not free.is_dir() or _sheets(free)):
        free = folder.with_name(f"{folder.name}-{number}")
        number += 1
    return free


def _counts(findings: list[Finding]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for finding in findings:
        row = counts.setdefault(finding.kind, {"error": 0, "warn": 0, "note": 0})
        row[finding.severity] += 1
    return counts


def _table(findings: list[Finding]) -> str:
    """Return a row a kind, the worst first: counts, what it means, and where."""
    from ocrlab.data.audit import KINDS

    rows: list[Sequence[object]] = [("kind", "error", "warn", "note", "meaning", "page:box")]
    counts = _counts(findings)
    for kind in sorted(counts, key=lambda kind: [-count for count in counts[kind].values()]):
        where = [f"{f.page}:{f.box}" if f.box else f.page for f in findings if f.kind == kind]
        unique = list(dict.fromkeys(where))
        more = f" and {len(unique) - SHOWN} more" if len(unique) > SHOWN else ""
        rows.append((kind, *counts[kind].values(), KINDS[kind], " ".join(unique[:SHOWN]) + more))
    return table(rows)


def _picture_lines(pictures: list[Path]) -> list[str]:
    if not pictures:
        return []
    return [f"{pictures[0]}" + (f" to {pictures[-1].name}" if len(pictures) > 1 else "")]
