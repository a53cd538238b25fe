"""Does the data doctor find what is wrong with annotated pages, and nothing else?

    python benchmarks/audit.py --data ../shared/data/sroie --seeds 3

Three questions: 200 defects planted by seed into copies of the val pages (planted.py), the defects that the receipts
had when they were published, and the findings on the untouched val pages. Only warnings and errors count. A planted
defect is found when a finding of an accepted kind names its page and one of its lines; a missing box, when a finding
lies where it was. Seed 0 is the one that must be reached, the others show the spread; a last table is of all together.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import planted
from planted import Defect, Natural
from table import ROOT, figure, judged, markdown, page, parser, publish

from ocrlab.data.audit import Finding, check
from ocrlab.errors import DataError

RECALL, FALSE = 0.95, 0.005  # at least of the planted defects, at most of the untouched boxes
OVERLAP = 0.3  # a missing box is found where findings cover so much of it, and lie in it with so much of their own area
COUNTS = ("warn", "error")

# A box at the wrong place is also one without ink, one whose text does not fit, or a second one on its neighbour.
PLACE = {"misplaced", "no_ink", "narrow", "wide", "swapped", "duplicate_box"}
ACCEPTED = {
    "shifted": PLACE | {"outside", "missing_box"},
    "swapped": {"swapped", "misplaced", "narrow", "wide"},
    "duplicated": {"duplicate_box"},
    "missing": {"missing_box"},
    "reversed": {"reversed"},
    "pair_iou>0.5": PLACE,
    "too_wide_for_text": {"wide", "misplaced", "swapped"},
    "too_narrow_for_text": {"narrow", "misplaced", "swapped"},
    "tall_box_long_text": {"narrow", "misplaced", "swapped"},
    "thin<=3px": {"narrow", "zero_area", "misplaced"},
    "no_ink(std<6)": {"no_ink", "misplaced"},
    "identical pages": {"duplicate_page", "near_duplicate_page", "leak"},
    "bad Huffman code": {"broken_image", "unreadable_image"},
}


def main() -> None:
    """Score, print the tables, and end with 1 where a number is not reached."""
    args = arguments()
    try:
        untouched = planted.read(args.data / "val")
        start = time.perf_counter()
        alarms = counted_findings(check(args.data, splits=("val",)))
        seconds = time.perf_counter() - start
    except (DataError, OSError) as error:
        sys.exit(f"No receipts to check: {error}")
    boxes = sum(len(raw.boxes) for raw in untouched)
    parts: list[tuple[bool | None, str]] = [quiet(alarms, boxes, len(untouched), seconds)]
    scores: list[tuple[str, bool]] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(args.first, args.first + args.seeds):
            met, text, hits = implants(args.data, Path(folder) / str(seed), args.each, seed, args.verbose)
            parts.append((met, text))
            scores += hits
        if args.seeds > 1:
            parts.append((None, overall(scores)))
        parts.append(nature(args.data, Path(folder) / "natural"))
    text = "\n\n".join([*(part for _, part in parts), accepted()])
    publish("audit", page("The data doctor", text), args)
    sys.exit(0 if all(met is not False for met, _ in parts) else 1)


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    command = parser(__doc__)
    data = ROOT.parent / "shared" / "data" / "sroie"
    command.add_argument("--data", type=Path, default=data, help="receipts with val/ and defects/")
    command.add_argument("--seeds", type=int, default=3, help="planted sets (default 3)")
    command.add_argument("--first", type=int, default=0, help="the first seed (default 0, which must reach the limit)")
    command.add_argument("--each", type=int, default=40, help="defects of each of the five kinds (default 40)")
    command.add_argument("--verbose", action="store_true", help="list each planted defect that was not found")
    return command.parse_args()


def counted_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that a user is warned of."""
    return [finding for finding in findings if finding.severity in COUNTS]


def quiet(findings: Sequence[Finding], boxes: int, pages: int, seconds: float) -> tuple[bool, str]:
    """Return whether the untouched pages have few findings, and which."""
    alarms = Counter(finding.kind for finding in findings if finding.box is not None or finding.kind == "missing_box")
    others = Counter(finding.kind for finding in findings) - alarms
    count = sum(alarms.values())
    met = count <= FALSE * boxes
    figure("false alarms on the untouched val pages, of their boxes", count / boxes, "share", limit=f"<= {FALSE}")
    rows = [[kind, number] for kind, number in alarms.most_common()]
    rows.append(["all", f"{count} of {boxes} boxes, {count / boxes:.2%}; limit {FALSE:.1%}: {judged(met)}"])
    rows.append(["about whole pages", ", ".join(f"{kind} {number}" for kind, number in others.items()) or "none"])
    rows.append(["seconds", f"{seconds:.1f} for {pages} pages"])
    return met, f"## The untouched val pages\n\n{markdown(('finding', 'how many'), rows)}"


def implants(
    data: Path, folder: Path, each: int, seed: int, verbose: bool
) -> tuple[bool | None, str, list[tuple[str, bool]]]:
    """Return whether enough planted defects are found (judged for seed 0 only), how many of each kind, and which."""
    pages = planted.read(data / "val")
    defects = planted.plant(pages, each, seed)
    planted.write(pages, folder / "val")
    findings = counted_findings(check(folder, splits=("val",)))
    hits = [is_detected(defect, findings) for defect in defects]
    rows: list[list[object]] = []
    for kind in planted.KINDS:
        rows.append([kind, *_share([hit for defect, hit in zip(defects, hits, strict=True) if defect.kind == kind])])
        for grade in sorted({defect.grade for defect in defects if defect.kind == kind}):
            some = [
                hit for defect, hit in zip(defects, hits, strict=True) if (defect.kind, defect.grade) == (kind, grade)
            ]
            rows.append([f"... {grade}", *_share(some)])
    met = sum(hits) >= RECALL * len(hits) if seed == 0 else None
    limit = f"; at least {RECALL}: {judged(met)}" if seed == 0 else ""
    least = f">= {RECALL}" if seed == 0 else None
    figure(f"planted defects found, seed {seed}", sum(hits) / len(hits), "share", limit=least)
    rows.append(["all", f"{sum(hits)} of {len(hits)}", f"{sum(hits) / len(hits):.3f}{limit}"])
    text = f"## Planted, seed {seed}\n\n{markdown(('defect', 'found', 'share'), rows)}"
    if verbose:
        missed = [defect for defect, hit in zip(defects, hits, strict=True) if not hit]
        text += "\n\n" + "\n".join(f"- not found: {_words(defect)}" for defect in missed)
    return met, text, [(defect.kind, hit) for defect, hit in zip(defects, hits, strict=True)]


def overall(scores: Sequence[tuple[str, bool]]) -> str:
    """Return the table of the defects of all seeds together."""
    rows = [[kind, *_share([hit for defect_kind, hit in scores if defect_kind == kind])] for kind in planted.KINDS]
    rows.append(["all", *_share([hit for _, hit in scores])])
    return f"## Planted, all seeds\n\n{markdown(('defect', 'found', 'share'), rows)}"


def is_detected(defect: Defect, findings: Sequence[Finding]) -> bool:
    """Return whether a planted defect is named."""
    lines = defect.lines
    fitting = [
        finding
        for finding in findings
        if finding.kind in ACCEPTED[defect.kind] and stem(finding.page) == defect.page.name
    ]
    if any(finding.kind != "missing_box" and lines & named(finding) for finding in fitting):
        return True
    return covers([finding for finding in fitting if finding.kind == "missing_box"], defect.place)


def covers(findings: Sequence[Finding], place: planted.Ints) -> bool:
    """Return whether missing boxes were reported where `place` (4, 2) is, and not just around it."""
    goal = _bounds(place)
    boxes = [_bounds(finding.polygon) for finding in findings if finding.polygon is not None]
    inside = [box for box in boxes if planted.covered(box, goal) >= OVERLAP]
    return sum(planted.covered(goal, box) for box in inside) >= OVERLAP


def nature(data: Path, folder: Path) -> tuple[bool, str]:
    """Return whether every natural defect is named, and which are not."""
    defects = planted.natural(data, folder / "train")
    findings = counted_findings(check(folder, splits=("train",)))
    hits = [meets(defect, findings) for defect in defects]
    rows: list[list[object]] = []
    for what in dict.fromkeys(defect.what for defect in defects):
        rows.append([what, *_share([hit for defect, hit in zip(defects, hits, strict=True) if defect.what == what])])
    rows.append(["all", f"{sum(hits)} of {len(hits)}", f"every one: {judged(all(hits))}"])
    figure("natural defects found", sum(hits) / len(hits), "share", limit=">= 1")
    text = f"## Natural\n\n{markdown(('defect', 'found', 'share'), rows)}"
    for defect, hit in zip(defects, hits, strict=True):
        if not hit:
            text += f"\n- not found: page {defect.page} {defect.what}, lines {sorted(defect.lines)}"
    return all(hits), text


def meets(defect: Natural, findings: Sequence[Finding]) -> bool:
    """Return whether a natural defect is named: its page and a line of it, or both of two identical pages."""
    fitting = [finding for finding in findings if finding.kind in ACCEPTED[defect.what]]
    if defect.twin:
        pair = {defect.page, defect.twin}
        return any(pair == {stem(finding.page), stem(finding.other or "")} for finding in fitting)
    here = [finding for finding in fitting if stem(finding.page) == defect.page]
    return any(named(finding) & defect.lines for finding in here) if defect.lines else bool(here)


def named(finding: Finding) -> set[int]:
    """Return the lines of its page that a finding names: its box's and, where `other` is `page:line`, that one."""
    there, _, line = (finding.other or "").rpartition(":")
    twin = {int(line)} if line.isdigit() and stem(there) == stem(finding.page) else set()
    return twin if finding.box is None else twin | {finding.box}


def stem(name: str) -> str:
    """Return the name of a page without folders and suffix."""
    return Path(name).stem


def accepted() -> str:
    """Return the table of what counts as naming a defect."""
    rows = [[kind, ", ".join(sorted(kinds))] for kind, kinds in ACCEPTED.items()]
    return f"## What counts as found\n\n{markdown(('defect', 'findings'), rows)}"


def _bounds(polygon: object) -> tuple[float, float, float, float]:
    points = np.asarray(polygon, float).reshape(-1, 2)
    (left, top), (right, bottom) = points.min(axis=0).tolist(), points.max(axis=0).tolist()
    return left, top, right, bottom


def _share(hits: Sequence[bool]) -> tuple[str, str]:
    return f"{sum(hits)} of {len(hits)}", f"{sum(hits) / len(hits):.3f}" if hits else ""


def _words(defect: Defect) -> str:
    texts = " and ".join(repr(box.text) for box in defect.boxes) or "its box"
    return f"{defect.kind} {defect.grade}, page {defect.page.name}, lines {sorted(defect.lines)}: {texts}"


if __name__ == "__main__":
    main()
