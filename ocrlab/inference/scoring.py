"""A detector scored on annotated pages, through the same path that prediction takes."""

from __future__ import annotations

import time
from collections.abc import Callable

from ocrlab.data.dataset import Pages, readable_pages
from ocrlab.data.formats import reader
from ocrlab.evaluation.metrics.page_scores import DatasetScores
from ocrlab.inference import page_inference
from ocrlab.inference.detector import Detector


def score(
    detector: Detector,
    data: str,
    split: str = "val",
    *,
    exif: bool = False,
    tick: Callable[[int, int], None] | None = None,
) -> DatasetScores:
    """Return every page of a split as IoU, DetEval and CLEval judge it; `tick(done, pages)` is called after each."""
    index = reader.load(data, split, exif=exif)
    start = time.perf_counter()
    plain = detector.config.model_copy(update={"exif": exif})
    samples, unreadable = readable_pages(index.samples, plain)
    pages = Pages(samples, plain)
    judged = {}
    for i, sample in enumerate(samples):
        judged[sample.name] = page_inference.judge(detector.model, pages.page(i), plain, bf16=detector.bf16)
        if tick:
            tick(i + 1, len(pages))
    return DatasetScores(judged, index.left_out + len(unreadable), time.perf_counter() - start)
