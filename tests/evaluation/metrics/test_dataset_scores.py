"""Pages by name: their rows, and which are worst."""

from __future__ import annotations

import numpy as np

from ocrlab.evaluation.metrics.page_scores import Scored, judge, summary

BOXES = [np.array([[0, 0], [50, 0], [50, 20], [0, 20]], float) + np.array((0, 40 * i)) for i in range(4)]


def pages(detected: dict[str, int]) -> Scored:
    """Return pages of four boxes, of which so many are found."""
    return Scored({name: judge(BOXES, [False] * 4, None, BOXES[:hits]) for name, hits in detected.items()}, 2, 1.5)


def test_rows_list_what_was_missed_and_wrong_on_each_page() -> None:
    scored = pages({"a": 4, "b": 1})
    first, second = scored.rows()
    assert (first["page"], first["truth"], first["detections"], first["missed"], first["false"]) == ("a", 4, 4, 0, 0)
    assert (second["missed"], second["recall@0.5"], second["hmean@0.5"]) == (3, 0.25, 0.4)


def test_the_worst_pages_come_first() -> None:
    scored = pages({"a": 4, "b": 1, "c": 0, "d": 3, "e": 0})
    assert [row["page"] for row in scored.worst(3)] == ["c", "e", "b"]
    assert len(scored.worst(50)) == 5


def test_the_record_holds_every_figure_its_interval_and_what_was_left_out() -> None:
    scored = pages({"a": 4, "b": 1, "c": 0})
    record = scored.record()
    assert summary(scored.pages.values()).items() <= record.items()
    assert record["hmean@0.5_low"] <= record["hmean@0.5"] <= record["hmean@0.5_high"]
    assert (record["skipped"], record["seconds"], record["pages"]) == (2, 1.5, 3)
