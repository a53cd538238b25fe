"""The pages of one evaluation by name: the figures of all, their interval, and the pages one by one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ocrlab.errors import ShapeError
from ocrlab.evaluation.metrics.page_scores import PageScores, interval, judge, summary


@dataclass(frozen=True)
class Scored:
    """Every page that was judged, by name, how many were left out, and the seconds that it took."""

    pages: Mapping[str, PageScores]
    skipped: int = 0
    seconds: float = 0.0

    def record(self) -> dict[str, float]:
        """Return the figures over all pages as `summary` names them, `hmean@0.5_low` and `_high`, skipped, seconds."""
        low, high = interval(list(self.pages.values()))
        ends = {"hmean@0.5_low": low, "hmean@0.5_high": high}
        return {**summary(self.pages.values()), **ends, "skipped": float(self.skipped), "seconds": self.seconds}

    def rows(self) -> list[dict[str, str | float]]:
        """Return one row a page, in order: its name, its boxes (`truth`, `detections`, both that count), its figures.

        `missed` and `false` are counted boxes without a partner at IoU 0.5.
        """
        rows: list[dict[str, str | float]] = []
        for name, page in self.pages.items():
            truth, detections, matched = page.iou.cared_truth, page.iou.cared_detections, page.iou.matched(0.5)
            boxes = {"truth": truth, "detections": detections, "missed": truth - matched, "false": detections - matched}
            rows.append({"page": name, **boxes, **page.figures()})
        return rows

    def worst(self, count: int = 5) -> list[dict[str, str | float]]:
        """Return the `count` rows of lowest hmean@0.5, then of lowest CLEval, worst first."""
        return sorted(self.rows(), key=lambda row: (row["hmean@0.5"], row["cleval_hmean"], row["page"]))[:count]


def score(pages: Mapping[str, tuple[Any, ...]]) -> Scored:
    """Score detections against the ground truth of the same pages: IoU hmean, DetEval and CLEval.

    `pages` maps the name of a page to (truth, detections) or (truth, detections, ignored): two lists of polygons
    (P, 2) in the pixels of the page, and (N,) true where a polygon of the truth does not count. Raises ShapeError for
    anything else.
    """
    start = time.perf_counter()
    judged: dict[str, PageScores] = {}
    for name, page in pages.items():
        if not isinstance(page, tuple) or len(page) not in (2, 3):
            raise ShapeError(
                f"Page {name!r} cannot be scored",
                got=f"{type(page).__name__} of {len(page)}" if hasattr(page, "__len__") else type(page).__name__,
                need="(truth, detections) or (truth, detections, ignored)",
            )
        truth, detections = page[0], page[1]
        judged[name] = judge(truth, page[2] if len(page) == 3 else [False] * len(truth), None, detections)
    return Scored(judged, seconds=time.perf_counter() - start)
