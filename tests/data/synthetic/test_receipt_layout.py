"""Wording and layout of synthetic receipts."""

from __future__ import annotations

from ocrlab.data.synthetic import receipt_layout, typesetting
from ocrlab.data.synthetic.stable_random import Dice


def test_a_receipt_has_30_to_60_boxes() -> None:
    for seed in range(300):
        boxes = sum(len(row.cells) for row in receipt_layout.rows(Dice(seed)))
        assert 30 <= boxes <= 60, seed


def test_text_stays_inside_the_sheet() -> None:
    for seed in range(60):
        sheet = receipt_layout.layout(Dice(seed), 480, 880)
        assert sheet.width == 480 and sheet.height <= 880
        for piece in sheet.pieces:
            x0, y0, x1, y1 = typesetting.box(piece)
            assert 0 <= x0 < x1 <= sheet.width and 0 <= y0 < y1 <= sheet.height, (seed, piece.text)


def test_lines_of_a_single_column_do_not_run_into_each_other() -> None:
    for seed in range(60):
        boxes = [typesetting.box(piece) for piece in receipt_layout.layout(Dice(seed), 480, 880).pieces]
        for place, upper in enumerate(boxes):
            for lower in boxes[place + 1 :]:
                both = min(upper[3], lower[3]) - max(upper[1], lower[1])
                if min(upper[2], lower[2]) > max(upper[0], lower[0]) and both > 0:
                    assert both < 0.2 * min(upper[3] - upper[1], lower[3] - lower[1]), seed


def test_shorten_keeps_whole_words_while_it_can() -> None:
    wide = typesetting.length("Olive Oil", "DejaVuSans", 10)
    assert receipt_layout.shorten("Olive Oil Extra", "DejaVuSans", 10, 1, wide) == "Olive Oil"
    assert receipt_layout.shorten("Olive", "DejaVuSans", 10, 1, 0) == "Ol"


def test_a_price_has_two_decimals() -> None:
    dice = Dice(1)
    assert all(receipt_layout.price(dice).partition(".")[2].isdigit() for _ in range(50))
