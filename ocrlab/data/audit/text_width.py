"""Do the characters of a box fit its width? Against the other boxes of the page, which are printed like it.

The width of a line is about pitch x characters + a margin, in a font of this page: boxes deviate from the page's
median by 13 % (more than 8 characters), 14 % (4 to 8) or 21 % (fewer); measured on 167 receipts. Letters printed at
double width are the one honest exception.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ocrlab.data.audit.finding import ERROR, WARN

Floats = NDArray[np.float64]

SLIM, BROAD = frozenset("iIl.,:;'|!jt()[]` "), frozenset("MWmw@%")
MARGIN = 0.3  # of the height, left and right together
FEW = 8  # boxes with text, below which a page has no median of its own
NARROW, SURE = -0.55, -1.0  # of the logarithm of the deviation: 58 % and 37 % of what is usual
WIDE = 1.0  # 2.7 times what is usual, after the doubled width is allowed for
ODD, FITS, GAIN = 1.6, 1.8, 9.0  # in spreads: each of a pair is odd, both fit when exchanged, and it is worth that much
PAIRS = 60  # boxes of each kind that are tried on each other
SPREAD = ((3, 0.24), (8, 0.15), (10**9, 0.12))  # of the logarithm, by the number of characters


def units(text: str) -> float:
    """Return the width of a text in characters of mean width: a compromise of fixed and proportional fonts."""
    return sum(0.8 if c in SLIM else 1.1 if c in BROAD else 2.0 if ord(c) >= 0x2E80 else 1.0 for c in text)


class Fit:
    """How wide each of N texts is against the median of its page; NaN where there is no text or no polygon."""

    def __init__(self, texts: Sequence[str], widths: Floats, heights: Floats) -> None:
        self.units = np.array([units(text.strip()) for text in texts], np.float64)
        self.letters = np.array([len(text.strip()) for text in texts])
        self.widths, self.heights = widths, heights
        usable = (self.units > 0) & (heights > 0) & (widths > 0)
        self.pitch = self.typical = np.nan
        if usable.sum() >= FEW:
            self.typical = float(np.median(heights[usable]))
            pitches = self._net()[usable] / self.units[usable]
            weights = np.minimum(self.units[usable], 12)
            self.pitch = _median(pitches, weights)

    def deviation(self, units: Floats | None = None, at: slice | list[int] = slice(None)) -> Floats:
        """Return log(width / usual width) (N,), with the box's height as far as it brings it nearer to 0.

        With `units` it is that of the boxes `at`, if their texts were as wide as these.
        """
        count = self.units[at] if units is None else units
        with np.errstate(all="ignore"):
            plain = np.log(self._net()[at] / (count * self.pitch))
            tall = np.clip(np.log(self.heights[at] / self.typical), -0.7, 1.2)  # a larger font is wider
            scaled = plain - tall
        nearer = np.where(np.abs(plain) < np.abs(scaled), plain, scaled)
        return np.where((count > 0) & np.isfinite(plain), np.where(plain * scaled > 0, nearer, 0.0), np.nan)

    def _net(self) -> Floats:
        return np.maximum(self.widths - MARGIN * np.minimum(self.heights, self.widths), 0.3 * self.widths)


def _median(values: Floats, weights: Floats) -> float:
    """Return the weighted median: long texts know the pitch better."""
    rank = values.argsort()
    total = weights[rank].cumsum()
    return float(values[rank][np.searchsorted(total, total[-1] / 2)])


def judge(fit: Fit) -> Iterator[tuple[int, str, str, str]]:
    """Yield boxes (index) with too few or too many pixels for their characters: kind, severity, why."""
    deviation = fit.deviation()
    spread = spreads(fit.letters)
    for index in np.flatnonzero(np.isfinite(deviation)):
        value = float(deviation[index])
        why = (
            f"{fit.letters[index]} characters in {fit.widths[index]:.0f} px: "
            f"{fit.widths[index] / fit.letters[index]:.1f} px a character, page median {fit.pitch:.1f}"
        )
        if value < min(NARROW, -3.5 * spread[index]):
            yield int(index), "narrow", ERROR if value < SURE else WARN, why
        elif value > max(WIDE, 4.5 * spread[index]):
            yield int(index), "wide", WARN, why


def exchanged(fit: Fit) -> Iterator[tuple[int, int, str]]:
    """Yield pairs of boxes (indices) whose texts fit when they change places, and do not as they are; with why."""
    deviation, spread = fit.deviation(), spreads(fit.letters)
    score = np.nan_to_num(deviation / spread)
    rank = score.argsort()  # the oddest first: thousands of odd boxes are no exchanged pairs
    low = [int(i) for i in rank[:PAIRS] if score[i] < -ODD]
    high = [int(i) for i in rank[::-1][:PAIRS] if score[i] > ODD]
    gains: list[tuple[float, int, int]] = []
    for i in low:
        for j in high:
            after = fit.deviation(fit.units[[j, i]], [i, j]) / spread[[j, i]]
            gain = score[i] ** 2 + score[j] ** 2 - float(np.square(after).sum())
            if np.abs(after).max() < FITS and gain > GAIN:
                gains.append((float(gain), i, j))
    used: set[int] = set()
    for _, i, j in sorted(gains, reverse=True):
        if not used & {i, j}:
            used |= {i, j}
            first, second = (f"{fit.letters[at]} characters in {fit.widths[at]:.0f} px" for at in (i, j))
            why = f"{first} and {second}, page median {fit.pitch:.1f} px a character: exchanged, both fit"
            yield i, j, why


def spreads(letters: NDArray[np.int64]) -> Floats:
    """Return the usual spread of the deviation for numbers of characters (N,)."""
    return np.select([letters <= most for most, _ in SPREAD], [value for _, value in SPREAD])
