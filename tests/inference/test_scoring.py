"""A detector scored on annotated pages: by name, with what was left out."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from ocrlab.inference import Detector, scoring


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data folder with pages of one and of two bars, their boxes, and a page without annotation."""
    for name in ("images", "gts"):
        (tmp_path / "val" / name).mkdir(parents=True)
    for bars in (1, 2, 3):
        image = np.full((160, 120, 3), 200, np.uint8)
        tops = [12 + 24 * i for i in range(bars)]
        for top in tops:
            cv2.rectangle(image, (20, top), (90, top + 12), (10, 10, 10), -1)
        cv2.imwrite(str(tmp_path / "val" / "images" / f"bars{bars}.png"), image)
        lines = [f"20,{top},91,{top},91,{top + 13},20,{top + 13},text\n" for top in tops]
        if bars < 3:
            (tmp_path / "val" / "gts" / f"gt_bars{bars}.txt").write_text("".join(lines))
    return tmp_path


def test_every_page_is_judged_by_name_and_reported(detector: Detector, data: Path) -> None:
    calls: list[tuple[int, int]] = []
    scored = scoring.score(detector, str(data), tick=lambda done, total: calls.append((done, total)))
    assert list(scored.pages) == ["bars1", "bars2"]
    assert (scored.skipped, calls) == (1, [(1, 2), (2, 2)])
    assert [page.iou.cared_truth for page in scored.pages.values()] == [1, 2]


def test_the_figures_are_those_of_the_pages(detector: Detector, data: Path) -> None:
    figures = scoring.score(detector, str(data)).record()
    assert figures["cleval_recall"] > 0.5 and figures["pages"] == 2
