"""What the data doctor says: one Finding a mistake, with where, how sure, and why in words with numbers."""

from __future__ import annotations

from dataclasses import dataclass

ERROR, WARN, NOTE = "error", "warn", "note"
SEVERITIES = (ERROR, WARN, NOTE)  # it must be wrong; it probably is; worth knowing
KINDS = {
    "unreadable_image": "the image cannot be decoded",
    "broken_image": "the image decodes, but its data is damaged",
    "unreadable_annotation": "a line of the annotation cannot be read, or a page has none",
    "exif": "the image bears an orientation that a loader may or may not apply",
    "wrong_size": "the boxes were made for an image of another size",
    "invalid": "no polygon: too few points, or coordinates that are not numbers",
    "zero_area": "all points of the box lie on one line",
    "self_crossing": "the outline crosses itself",
    "outside": "the box leaves the image",
    "reversed": "points counter-clockwise, or not from the top left on",
    "duplicate_box": "the same line boxed twice",
    "misplaced": "the box is shifted away from its ink",
    "no_ink": "the box lies on blank paper",
    "narrow": "too few pixels for its characters",
    "wide": "too many pixels for its characters",
    "swapped": "the text or the coordinates belong elsewhere",
    "missing_box": "ink that looks like a line of text and has no box",
    "no_document": "most of what looks like ink is outside the boxes: a photograph, or boxes for a part only",
    "duplicate_page": "the same image under two names",
    "near_duplicate_page": "two images of the same page, or of the same form with the same text",
    "leak": "a page that is in two splits",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong with the data; `polygon` is [x, y] in pixels of the image as it is stored.

    `box` is the line of the annotation file, from 1 (in a JSON the number of the box in its page); None for a page.
    """

    kind: str  # of KINDS
    page: str
    split: str
    box: int | None
    polygon: list[list[float]] | None
    severity: str  # of SEVERITIES
    why: str
    other: str | None = None  # the other page, or `page:box`
