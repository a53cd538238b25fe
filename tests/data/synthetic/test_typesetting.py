"""Letters on paper: font tables, boxes, ink."""

from __future__ import annotations

import string

import numpy as np
import pytest

from ocrlab.data.synthetic import receipt_layout, typesetting
from ocrlab.data.synthetic.typesetting import MARGIN, SCALE, Piece

FONTS = sorted({font for style in receipt_layout.STYLES for font in style[:2]})


@pytest.mark.parametrize("font", FONTS)
def test_every_font_has_what_receipts_print(font: str) -> None:
    metrics = typesetting.face(font)
    assert set(string.ascii_letters + string.digits + " .,:;/-#&%$()*@!+") <= set(metrics.advance)
    assert set(metrics.advance) - set(metrics.ink) == {" "}


@pytest.mark.parametrize("font", FONTS)
@pytest.mark.parametrize("stretch", [0.8, 1.0, 1.1])
def test_the_box_is_the_ink_with_its_margin(font: str, stretch: float) -> None:
    piece = Piece("Tygf 12,50 QJ", font, 30, 40, 24, stretch)
    plane = np.zeros((80 * SCALE, 400 * SCALE), np.uint8)
    typesetting.draw(piece, plane)
    rows, columns = np.nonzero(plane > 100)
    box = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) / SCALE
    inner = np.array(typesetting.box(piece)) + MARGIN * piece.size * np.array([1, 1, -1, -1])
    np.testing.assert_allclose(box, inner, atol=0.04 * piece.size)  # the rasteriser rounds, and fits stems to its grid
