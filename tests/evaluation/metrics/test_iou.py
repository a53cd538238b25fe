"""The IoU protocol: equal to the published evaluator, plain rules by hand, and nothing that a detector can break."""

import json
import math
import warnings
from typing import Any

import numpy as np
import pytest

from ocrlab.evaluation.metrics import iou


def box(left: float, top: float, width: float = 10, height: float = 10) -> np.ndarray[Any, Any]:
    return np.array([[left, top], [left + width, top], [left + width, top + height], [left, top + height]], np.float32)


def test_every_page_of_the_reference_has_the_same_matches_and_figures(shared) -> None:
    pages = json.loads((shared / "golden" / "eval_inputs.json").read_text())
    wanted = json.loads((shared / "golden" / "eval_outputs.json").read_text())["iou"]
    matches = [iou.match(page["gt"], page["ignore"], page["det"]) for page in pages]
    for page, want in zip(matches, wanted["per_image"], strict=True):
        assert [{"gt": row, "det": column} for row, column in page.pairs[0.5]] == want["pairs"]
        assert (page.cared_truth, page.cared_detections) == (want["gtCare"], want["detCare"])
        assert page.matched(0.5) == want["detMatched"]
        assert (page.precision(0.5), page.recall(0.5), page.hmean(0.5)) == tuple(
            want[name] for name in ("precision", "recall", "hmean")
        )
    total = iou.summary(matches)
    assert {name: total[f"{name}@0.5"] for name in ("precision", "recall", "hmean")} == wanted["metric"]
    assert total["pages"] == 100
    assert total["hmean@0.5"] > total["hmean@0.7"] > total["hmean@0.8"] > 0


def test_iou_is_the_shared_area_over_the_joint_area_at_every_threshold() -> None:
    shifted = [box(0, 0), box(2, 0), box(4, 0)]  # of a 10 x 10 box: IoU 1, 8/12, 6/14
    page = iou.match([box(0, 0)] * 3, [False] * 3, shifted)
    assert page.iou[0] == pytest.approx([1, 8 / 12, 6 / 14])
    assert [page.matched(t) for t in iou.THRESHOLDS] == [2, 1, 1]
    assert iou.match([box(0, 0)], [False], [box(0, 0, 10, 5)]).matched(0.5) == 0, "exactly 0.5 is not above 0.5"


def test_pairs_are_taken_first_come_first_served_not_best_first() -> None:
    page = iou.match([box(0, 0), box(1, 0)], [False, False], [box(1, 0), box(0, 0)])
    assert page.pairs[0.5] == [(0, 0), (1, 1)], "each would fit the other better"
    assert page.pairs[0.8] == [(0, 0), (1, 1)]
    exact = iou.match([box(0, 0), box(1, 0)], [False, False], [box(1, 0), box(0, 0)], thresholds=(0.9,))
    assert exact.pairs == {0.9: [(0, 1), (1, 0)]}


def test_a_detection_mostly_inside_a_single_ignored_region_does_not_count() -> None:
    truth, ignored = [box(0, 0), box(100, 0, 40, 40)], [False, True]
    inside, half, outside = box(110, 10), box(135, 10), box(200, 0)
    page = iou.match(truth, ignored, [box(0, 0), inside, half, outside])
    assert page.detection_counts.tolist() == [True, False, True, True], "exactly half inside still counts"
    assert page.truth_counts.tolist() == [True, False]
    assert (page.precision(0.5), page.recall(0.5)) == (1 / 3, 1)
    whole = iou.match(truth, ignored, [box(100, 0, 40, 40), box(100, 0, 45, 45)])
    assert whole.pairs[0.5] == [] and whole.cared_detections == 0


@pytest.mark.parametrize(("truth", "ignored", "detections", "precision", "recall", "hmean"), [
    ([], [], [], 1, 1, 1),
    ([], [], [box(0, 0)], 0, 1, 0),
    ([box(0, 0)], [True], [box(0, 0)], 1, 1, 1),
    ([box(0, 0)], [True], [box(50, 50)], 0, 1, 0),
    ([box(0, 0)], [False], [], 0, 0, 0),
    ([box(0, 0)], [False], [box(50, 50)], 0, 0, 0),
])  # fmt: skip
def test_pages_with_nothing_to_find_or_nothing_detected(truth, ignored, detections, precision, recall, hmean):
    page = iou.match(truth, ignored, detections)
    assert (page.precision(0.5), page.recall(0.5), page.hmean(0.5)) == (precision, recall, hmean)
    assert page.iou.shape == (len(truth), len(detections))


def test_a_summary_adds_up_counts_before_dividing() -> None:
    good = iou.match([box(0, 0)] * 1, [False], [box(0, 0)])
    bad = iou.match([box(0, 0), box(50, 0), box(90, 0)], [False] * 3, [box(200, 0)])
    figures = iou.summary([good, bad, iou.match([], [], [])])
    assert (figures["precision@0.5"], figures["recall@0.5"], figures["pages"]) == (1 / 2, 1 / 4, 3)
    assert figures["hmean@0.5"] == pytest.approx(1 / 3)
    assert set(figures) == {f"{n}@{t}" for n in ("hmean", "precision", "recall") for t in (0.5, 0.7, 0.8)} | {"pages"}
    assert set(iou.summary([]).values()) == {0.0}


BROKEN: dict[str, Any] = {
    "a crossing outline": [[0, 0], [10, 10], [10, 0], [0, 10]],
    "no area": [[0, 0], [10, 0], [5, 0]],
    "one place": np.zeros((4, 2)),
    "NaN": [[math.nan, 0], [10, 0], [10, 10], [0, 10]],
    "infinity": [[math.inf, 0], [10, 0], [10, 10], [0, 10]],
    "far beyond any page": [[1e200, 0], [0, 1e200], [-1e200, -1e200]],
    "too small for arithmetic": [[0, 0], [1e-120, 0], [0, 1e-120]],
    "two points": [[0, 0], [10, 0]],
    "nothing": [],
    "rows of unequal length": [[0, 0], [10, 0], [1]],
    "three numbers a point": [[0, 0, 0], [10, 0, 0], [10, 10, 0]],
    "no numbers": "text",
    "None": None,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_detection_is_a_miss_and_a_broken_truth_is_left_out(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = iou.match([box(0, 0), box(20, 0)], [False, False], [box(0, 0), BROKEN[name]])
        assert page.pairs[0.5] == [(0, 0)] and page.cared_detections == 2
        assert np.isfinite(page.iou).all() and (page.iou[:, 1] == 0).all()
        other = iou.match([BROKEN[name], box(0, 0), BROKEN[name]], [False, False, True], [box(0, 0)])
    assert other.pairs[0.5] == [(1, 0)] and other.cared_truth == 1


def test_polygons_of_any_number_of_points_and_either_direction_match() -> None:
    turn = np.linspace(0, 2 * np.pi, 30, endpoint=False)
    circle = np.stack([np.cos(turn), np.sin(turn)], axis=1) * 20 + 50
    page = iou.match([circle, box(0, 0)], [False, False], [box(0, 0)[::-1], circle[::-1]])
    assert page.pairs[0.8] == [(0, 1), (1, 0)]
    assert page.iou[0, 1] == pytest.approx(1)
