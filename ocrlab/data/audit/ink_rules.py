"""The rules for single boxes by the ink under them: beside their ink, on none, on another line's, and lines without."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ocrlab import geometry
from ocrlab.data.audit import missing_boxes
from ocrlab.data.audit.box_alignment import Place, lies_well, look
from ocrlab.data.audit.finding import ERROR, NOTE, WARN, Finding
from ocrlab.data.audit.missing_boxes import Line
from ocrlab.data.audit.page_image import Sheet
from ocrlab.data.audit.raw_annotations import Box, Raw
from ocrlab.geometry import Polygon

Places = list[tuple[Box, Place | None]]
Problem = tuple[str, str, str]  # kind, severity, why

BLANK = 0.02  # of a box is ink, below which it lies on nothing; 1,049 honest boxes have at least 0.05
WELL_PLACED = 0.92  # of the ink that the best place holds, above which a box does not lie too high or too low
FOREIGN_INK = 0.4  # of the ink in a box is its own, up to which it lies on that of others
AWAY, SIMILAR = 3.0, 0.5  # heights to the line that a box was meant for; the line's width against the box's
REPEATED_LINES = 4  # like lines below each other without a box, from which it is a habit and no oversight
DOWN, ALONG = 0.2, 0.4  # heights: ink out at one side and paper at the other, up or down; left or right
# Less of the ink at the best place is in the box; heights that are blank at a side. This reports none of 9,074 honest
# boxes more, and 9 of 65 shifted ones with up to 3 characters that were not reported before.
LOST, PAPER = 0.6, 0.25
LITTLE = 2.0  # pixels: annotators are sloppy by that much


def findings(raw: Raw, places: Places, sheet: Sheet, twice: set[int | None]) -> list[Finding]:
    """Return what the ink tells about the boxes of a page; those on the lines `twice` have a finding already."""
    flipped = list(_mirrored(raw, places, sheet))
    reported = twice | {finding.box for finding in flipped}
    lines = missing_boxes.lines(sheet)
    wrong: list[Finding] = []
    for box, place in places:
        if place is not None and not box.ignored and box.line not in reported:
            problem = _placement_problem(place, LITTLE / sheet.text) or _displacement_problem(box, place, lines, sheet)
            if problem:
                wrong.append(raw.finding(*problem, box))
    beside = [(box, place) for box, place in places if box.line in {finding.box for finding in wrong}]
    return flipped + wrong + list(_unboxed(raw, lines, sheet, beside[: missing_boxes.MOST], _margin(places)))


def _mirrored(raw: Raw, places: Places, sheet: Sheet) -> Iterator[Finding]:
    """Yield boxes that lie well only when x and y change places, which also turns the way their points run."""
    for box, place in places:
        if geometry.area(box.polygon) >= 0:
            continue
        wide, tall = np.ptp(box.polygon, axis=0)
        many = len(box.text.strip()) > 1
        if (many and wide > 1.2 * tall) or (lies_well(place) and not (many and tall > 1.5 * wide)):
            continue  # exchanged, a line would run down the page; or it lies well as it is
        flipped = look(sheet, np.ascontiguousarray(box.polygon[:, ::-1] * sheet.scale))
        if flipped is not None and lies_well(flipped):
            why = f"it fits when x and y change places: {flipped.inside:.0%} of its area is ink then, "
            yield raw.finding("swapped", ERROR, why + f"{0 if place is None else place.inside:.0%} as it is", box)


def _placement_problem(place: Place, little: float) -> Problem | None:
    """Say how a box lies beside its ink, or on none; `little` is what a sloppy edge is, in heights."""
    if place.inside < BLANK:
        return "no_ink", ERROR if place.inside == 0 else WARN, f"{place.inside:.1%} of its area is ink"
    left, top, right, bottom = place.out
    free_left, free_top, free_right, free_bottom = place.blank
    if place.ink_share > WELL_PLACED:
        top = bottom = 0.0
    up, down = _cut(top, free_bottom, little), _cut(bottom, free_top, little)
    sides = (
        ("top", "bottom", min(up, -2 * place.dy), max(DOWN, little)),
        ("bottom", "top", min(down, 2 * place.dy), max(DOWN, little)),
        ("left", "right", min(left, free_right, -2 * place.dx), ALONG),
        ("right", "left", min(right, free_left, 2 * place.dx), ALONG),
    )
    edge, opposite, shift, least = max(sides, key=lambda side: side[2] / side[3])
    if shift >= least:
        why = f"ink goes on beyond its {edge} and the {opposite} is blank for {shift:.0%} of its height: "
    else:  # it has lost most of its ink and is blank at a side: signs so few that no edge is far from them
        lost = place.ink_share < LOST and place.own > FOREIGN_INK and max(abs(place.dx), abs(place.dy)) >= DOWN
        if not lost or max(place.blank) < PAPER:
            return None
        why = f"a side of it is blank for {max(place.blank):.0%} of its height: "
    steps = [
        f"{abs(step):.1f} heights {words[step > 0]}"
        for step, words in ((place.dx, ("to the left", "to the right")), (place.dy, ("higher", "lower")))
        if abs(step) > 0.05
    ]
    why += f"it holds {place.ink_share:.0%} of what it would hold {' and '.join(steps) or 'at its best'}"
    return "misplaced", WARN, why


def _cut(out: float, free: float, little: float) -> float:
    """Return by how much a line sticks out where the other side is free, in heights.

    Where much is free the box is higher than its text, and a shift by half of that cuts less of it.
    """
    return max(min(out, free), min(2 * out, free - DOWN) if out > little / 2 else 0.0)


def _is_displaced(place: Place) -> bool:
    """Return whether a box lies on the ink of other boxes, or on none."""
    return place.own <= FOREIGN_INK or place.inside <= 2 * BLANK


def _displacement_problem(box: Box, place: Place, lines: list[Line], sheet: Sheet) -> Problem | None:
    """Say that a box lies on the ink of others, or on none, and near by is an unboxed line of its width."""
    low, high = box.polygon.min(axis=0) * sheet.scale, box.polygon.max(axis=0) * sheet.scale
    wide, tall = high - low
    for line in lines if _is_displaced(place) else ():
        x, y, w, h = line.box
        right, down = x + w / 2 - (low[0] + high[0]) / 2, y + h / 2 - (low[1] + high[1]) / 2
        if max(abs(right), abs(down)) < AWAY * tall and SIMILAR < w / wide < 1.1 and 0.4 < h / tall < 1.2:
            px, py = right / sheet.scale, down / sheet.scale
            why = (
                f"{place.own:.0%} of the ink in it is in no other box, and a line as wide without box, "
                f"{w / sheet.scale:.0f} px, is {abs(px):.0f} px to the {'right' if px > 0 else 'left'} and "
                f"{abs(py):.0f} px {'lower' if py > 0 else 'higher'}"
            )
            return "misplaced", WARN, why
    return None


def _margin(places: Places) -> tuple[float, float]:
    """Return the paper between ink and the sides of the boxes of a page, across and down: medians, in their heights."""
    blank = np.array([place.blank for _, place in places if place is not None and lies_well(place)])
    return (float(np.median(blank[:, ::2])), float(np.median(blank[:, 1::2]))) if len(blank) else (0.0, 0.0)


def _unboxed(raw: Raw, lines: list[Line], sheet: Sheet, wrong: Places, paper: tuple[float, float]) -> Iterator[Finding]:
    """Yield lines of text without a box; those that boxes in a `wrong` place were meant for are explained.

    A finding has as much `paper` around its ink as the boxes of the page have around theirs (see _margin). Of signs
    that come again and again below each other (stamped, or written in) only the first is a warning.
    """
    meant = [line for box, place in wrong for line in _lines_meant(box.polygon, place, lines, sheet)]
    unexplained = [
        line
        for line in lines
        if missing_boxes.likeness(line) >= missing_boxes.TEXT_LIKE and missing_boxes.is_print(line)
        if not any(line is other for other in meant)
    ]
    around, limit = np.array(paper) * sheet.text / sheet.scale, np.array(sheet.ink.shape[::-1]) / sheet.scale
    for number, line in enumerate(unexplained):
        x, y, w, h = (value / sheet.scale for value in line.box)
        single = line.letters == 1
        why = (
            f"{line.letters} piece{'' if single else 's'} of ink {h:.0f} px high in {w:.0f} px "
            f"look{'s' if single else ''} as the text in the boxes of this page "
            f"and ha{'s' if single else 've'} no box (log odds {missing_boxes.likeness(line):.1f})"
        )
        low, high = np.maximum(np.array([x, y]) - around, 0), np.minimum(np.array([x + w, y + h]) + around, limit)
        (left, top), (right, bottom) = low.tolist(), high.tolist()
        points = [[left, top], [right, top], [right, bottom], [left, bottom]]
        like = [at for at, other in enumerate(unexplained) if _alike(line.box, other.box)]
        severity = NOTE if len(like) >= REPEATED_LINES and number > min(like) else WARN
        yield Finding("missing_box", raw.name, raw.split, None, points, severity, why)


def _lines_meant(polygon: Polygon, place: Place | None, lines: list[Line], sheet: Sheet) -> list[Line]:
    """Return the lines that a misplaced box was meant for: what is at its best place, or the nearest like it.

    The nearest is that of a box without ink of its own. A box that cuts its line has claimed it: it is not free.
    """
    low, high = polygon.min(axis=0) * sheet.scale, polygon.max(axis=0) * sheet.scale
    wide, tall = high - low
    way = np.zeros(2) if place is None else np.array([place.dx, place.dy]) * min(wide, tall)
    there, near = [], []
    for line in lines:
        start, size = np.array(line.box[:2]), np.array(line.box[2:])
        shared = np.maximum(np.minimum(start + size, high + way) - np.maximum(start, low + way), 0)
        if shared.prod() > 0.5 * size.prod():
            there.append(line)
        far = float(np.abs(2 * start + size - low - high).max() / 2)
        if far < AWAY * tall and SIMILAR < line.box[2] / wide < 1.1:
            near.append((far, line))
    if there or not (place is None or _is_displaced(place)) or not near:
        return there
    return [min(near, key=lambda pair: pair[0])[1]]


def _alike(first: tuple[int, int, int, int], second: tuple[int, int, int, int]) -> bool:
    """Return whether two lines stand below each other and have one size."""
    same_size = all(0.7 < first[side] / second[side] < 1.4 for side in (2, 3))
    return abs(first[0] - second[0]) < 1.5 * first[3] and same_size
