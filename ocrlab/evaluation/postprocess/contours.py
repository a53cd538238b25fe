"""The outlines of what is text in a mask: as many as are wanted, in a time that no mask can draw out.

OpenCV needs a microsecond for each outline, and a checkerboard has one for each second pixel: where a mask is that busy
it is cut down first, to a part that holds the outlines that are wanted.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.uint8]  # (h, w), 0 and 1
Outline = NDArray[np.int32]  # (P, 1, 2), as OpenCV gives it

BUSY = 200_000  # changes between text and none along the rows; 5,000 words have a third of it
SAMPLED = 64  # one of so many rows is looked at
STRIP = 1 << 17  # pixels that are first looked at


def last(mask: Mask, count: int) -> Sequence[Outline]:
    """Return the first `count` outlines in OpenCV's order, those of holes too: the ones that begin lowest on the page.

    Of a busy mask only a strip at the bottom is read: outlines that begin below its first row are all in it, whole.
    """
    height, width = mask.shape
    rows = STRIP // width + 2 if busy(mask) else height
    while True:
        top = max(height - rows, 0)
        outlines = cv2.findContours(mask[top:], cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE, offset=(0, top))[0]
        if top == 0 or (len(outlines) >= count and min(o[0, 0, 1] for o in outlines[:count]) > top):
            return outlines[:count]
        rows *= 2


def largest(mask: Mask, count: int) -> Sequence[Outline]:
    """Return the `count` outer outlines of most area, in OpenCV's order; of a busy mask those of most pixels.

    What lies inside of a hole counts, too: a line in the middle of a seal whose text goes round.
    """
    if busy(mask):
        number, labels, facts, _ = cv2.connectedComponentsWithStats(mask)
        chosen = np.zeros(number, np.uint8)
        chosen[1 + np.argsort(-facts[1:, cv2.CC_STAT_AREA], kind="stable")[:count]] = 1
        mask = chosen[labels]
    # Of a mask that is still busy the holes alone would be too many, and what is inside of them goes with them.
    way = cv2.RETR_EXTERNAL if busy(mask) else cv2.RETR_CCOMP
    outlines: Sequence[Outline]
    outlines, tree = cv2.findContours(mask, way, cv2.CHAIN_APPROX_SIMPLE)
    if way == cv2.RETR_CCOMP and len(outlines):
        outlines = [outline for outline, parent in zip(outlines, tree[0, :, 3].tolist(), strict=True) if parent < 0]
    if len(outlines) <= count:
        return outlines
    area = np.array([cv2.contourArea(outline) for outline in outlines])
    return [outlines[i] for i in np.sort(np.argsort(-area, kind="stable")[:count])]


def busy(mask: Mask) -> bool:
    """Return whether a mask changes so often along its rows that its outlines cannot all be looked at."""
    part = mask[::SAMPLED]
    return int(np.count_nonzero(part[:, 1:] != part[:, :-1])) * SAMPLED > BUSY
