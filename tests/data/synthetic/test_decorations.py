"""What is printed or drawn besides text."""

from __future__ import annotations

import pytest

from ocrlab.data.synthetic import decorations
from ocrlab.data.synthetic.receipt_layout import RULES, Mark, Sheet
from ocrlab.data.synthetic.stable_random import Dice
from ocrlab.data.synthetic.typesetting import SCALE


@pytest.mark.parametrize("kind", [*RULES, "barcode", "logo", "bar", "box", "watermark"])
def test_every_mark_leaves_ink_in_its_place(kind: str) -> None:
    for seed in range(8):
        sheet = Sheet(200, 150, [], [Mark(kind, 20, 40, 160, 60)])
        plane = decorations.printed(Dice(seed), sheet)
        assert plane.shape == (150 * SCALE, 200 * SCALE)
        assert plane[40 * SCALE : 100 * SCALE, 20 * SCALE : 180 * SCALE].any()
        plane[38 * SCALE : 102 * SCALE] = 0
        assert kind == "watermark" or not plane.any()


def test_hands_sometimes_add_something() -> None:
    sheet = Sheet(200, 300, [], [])
    ink = [decorations.handmade(Dice(seed), sheet).any() for seed in range(40)]
    assert 10 < sum(ink) < 40
