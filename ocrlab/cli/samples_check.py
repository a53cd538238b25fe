"""`ocrlab samples check`: what is wrong with a data set; a table, contact sheets, and a cleaned copy when asked."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ocrlab.cli import output_paths, progress
from ocrlab.cli.parser import Answer, table
from ocrlab.errors import ConfigError, escape_name
from ocrlab.records import SCHEMA, finite

if TYPE_CHECKING:
    from ocrlab.data.audit import Finding

SHOWN = 6  # examples of a kind in the table
SEVERITIES = ("error", "warn", "note")
CLEAN = ("pages", "boxes", "changes")  # what the record says of a cleaned copy
EXAMPLES = """
  ocrlab samples check receipts                           all splits; contact sheets in reports/check-receipts
  ocrlab samples check receipts --split val --out sheets
  ocrlab samples check receipts --clean receipts-clean    also write a copy without the certain errors

exit status: 0 = nothing suspicious; 1 = at least one error or warning; 2 = usage error
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the words of this command."""
    parser.add_argument("data", type=Path, metavar="DATA", help="data folder or annotation file")
    parser.add_argument("--split", nargs="+", metavar="NAME", help="splits to check (default: all)")
    parser.add_argument(
        "--out", type="path", metavar="DIR", help="folder for contact sheets (default: reports/check-DATA)"
    )
    parser.add_argument(
        "--clean", type="path", metavar="DIR", help="also write a copy without the certain errors to this new folder"
    )


def run(args: argparse.Namespace) -> Answer:
    """Check a data set; the exit status is 1 if something must be wrong or probably is, else 0.

    Nothing is overwritten: sheets of an earlier check in --out are an error, and without --out a new folder is made.
    """
    from ocrlab.data import audit
    from ocrlab.data.audit import contact_sheet, repaired_copy

    if args.clean is not None and args.clean.exists() and (not args.clean.is_dir() or any(args.clean.iterdir())):
        raise ConfigError(f"--clean {args.clean} already exists", need="a new or empty folder", do="Name another one")
    out = args.out or output_paths.unused(Path("reports") / f"check-{args.data.resolve().stem}", _has_sheets)
    if _has_sheets(out):
        need = "a folder without sheet-NNN.png"
        raise ConfigError(f"--out {out} holds sheets already", need=need, do="Name another one")
    output_paths.folder(out, "--out")
    if args.clean is not None:
        output_paths.folder(args.clean, "--clean")
    with progress.page_progress("checking") as tick:
        findings = audit.check(args.data, args.split, tick)
    counts: dict[str, Counter[str]] = {}
    for finding in findings:
        counts.setdefault(finding.kind, Counter())[finding.severity] += 1
    problems = [finding for finding in findings if finding.severity != "note"]
    pictures = []
    if problems:
        out.mkdir(parents=True, exist_ok=True)
        for number, sheet in enumerate(contact_sheet.sheets(args.data, problems, args.split), 1):
            pictures.append(out / f"sheet-{number:03}.png")
            output_paths.write_png(pictures[-1], sheet)
    record = {
        "schema": SCHEMA,
        "data": str(args.data),
        "counts": {kind: {severity: count[severity] for severity in SEVERITIES} for kind, count in counts.items()},
        "findings": [finite(asdict(finding)) for finding in findings],
        "pictures": [str(picture) for picture in pictures],
    }
    texts = [_table(findings, counts) if findings else "nothing is wrong"]
    if pictures:
        texts.append(escape_name(pictures[0]) + (f" to {pictures[-1].name}" if len(pictures) > 1 else ""))
        if len(problems) > contact_sheet.MOST:
            texts[-1] += f", the first {contact_sheet.MOST} of {len(problems):,} findings"
    if args.clean is not None:
        done = repaired_copy.copy(args.data, args.clean, findings, args.split)
        record["clean"] = {"folder": str(done.folder), **{key: getattr(done, key) for key in CLEAN}}
        changed = ", ".join(f"{count} {what}" for what, count in sorted(done.counts.items())) or "nothing was changed"
        where = escape_name(done.folder)
        texts.append(f"{done.pages} pages with {done.boxes} boxes in {where}: {changed} (CHANGES.txt)")
    return Answer(record, "\n".join(texts), status=1 if problems else 0)


def _has_sheets(folder: Path) -> bool:
    return folder.exists() and (not folder.is_dir() or any(folder.glob("sheet-*.png")))


def _table(findings: list[Finding], counts: dict[str, Counter[str]]) -> str:
    """Return a row a kind, the worst first: counts, what it means, and where."""
    from ocrlab.data.audit import KINDS

    rows: list[Sequence[object]] = [("kind", *SEVERITIES, "meaning", "page:box")]
    for kind in sorted(counts, key=lambda kind: [-counts[kind][severity] for severity in SEVERITIES]):
        places = (f"{f.page}:{f.box}" if f.box else f.page for f in findings if f.kind == kind)
        where = list(dict.fromkeys(map(escape_name, places)))
        more = f" and {len(where) - SHOWN} more" if len(where) > SHOWN else ""
        numbers = [counts[kind][severity] for severity in SEVERITIES]
        rows.append((kind, *numbers, KINDS[kind], " ".join(where[:SHOWN]) + more))
    return table(rows)
