"""Where characters are taken to be, and which are inside."""

from __future__ import annotations

import numpy as np
import pytest

from ocrlab.evaluation.metrics import cleval_characters
from ocrlab.evaluation.metrics.polygon_overlap import shapes

LINE = np.array([[0, 0], [100, 0], [100, 20], [0, 20]], float)


def test_centres_lie_at_equal_steps_along_the_middle() -> None:
    boxes = shapes([LINE, LINE[:, ::-1] + 200])
    counts, owner = cleval_characters.centres(boxes, cleval_characters.ratios(boxes), np.array([4, 2]))
    assert owner.tolist() == [0, 0, 0, 0, 1, 1]
    assert counts[:4].tolist() == [[12.5, 10], [37.5, 10], [62.5, 10], [87.5, 10]]
    assert cleval_characters.ratios(boxes) == pytest.approx([5, 5], rel=1e-4), "by the order of the corners"


def test_a_point_on_an_edge_is_inside_to_the_right_and_below() -> None:
    boxes = shapes([LINE])
    sides = np.array([LINE + np.array(by) for by in ([5, 0], [-95, 0], [0, 10], [0, -10])])
    pairs = (np.zeros(4, np.intp), np.arange(4))
    inside = cleval_characters.taken(boxes, cleval_characters.ratios(boxes), np.array([10]), shapes(sides), pairs)
    assert inside.count.tolist() == [10, 0, 10, 0]  # centres at x 5, 15 ... 95 and y 10


def test_the_middle_of_a_curved_line_is_between_its_halves() -> None:
    bent = np.array([[0, 0], [50, 50], [100, 0], [100, 20], [50, 70], [0, 20]], float)
    assert cleval_characters.middle_line(bent, np.array([0, 0.5, 1])).tolist() == [[0, 10], [50, 60], [100, 10]]


def test_shorter_outlines_are_padded_without_new_edges() -> None:
    outlines = cleval_characters.padded(shapes([LINE, LINE[:3], None]))
    assert outlines.shape == (2, 4, 3)
    assert outlines[:, :, 1].T.tolist() == [*LINE[:3].tolist(), LINE[2].tolist()]
