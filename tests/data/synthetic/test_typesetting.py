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


def test_a_monospaced_word_is_as_wide_as_its_letters() -> None:
    assert typesetting.length("iW", "DejaVuSansMono", 10) == pytest.approx(2 * 10 * 1233 / 2048)
    assert typesetting.length("iW", "DejaVuSansMono", 10, 0.5) == pytest.approx(10 * 1233 / 2048)


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


def test_words_share_out_the_line() -> None:
    piece = Piece("No. 7, Mill  Lane", "DejaVuSans", 10, 20, 16)
    words = list(typesetting.words(piece))
    assert [word for word, _ in words] == ["No.", "7,", "Mill", "Lane"]
    boxes = np.array([box for _, box in words])
    line = typesetting.box(piece)
    np.testing.assert_allclose([*boxes[:, :2].min(0), *boxes[:, 2:].max(0)], line)
    assert (boxes[1:, 0] > boxes[:-1, 2]).all()


def test_inverse_letters_are_cut_out_of_the_bar() -> None:
    plane = np.full((60, 200), 240, np.uint8)
    typesetting.draw(Piece("TOTAL", "DejaVuSans-Bold", 10, 20, 15, inverse=True), plane)
    assert plane.min() == 0
    assert plane[0, 0] == 240


def test_letters_that_run_off_the_paper_are_cut() -> None:
    plane = np.zeros((40, 40), np.uint8)
    typesetting.draw(Piece("WWWW", "DejaVuSans", -10, 12, 16), plane)
    assert plane[:, 0].any() and plane[:, -1].any()
