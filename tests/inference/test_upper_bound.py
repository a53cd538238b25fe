"""The oracle: what perfect maps reach, and what settings alone lose."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ocrlab.config.schema import Config, apply
from ocrlab.data.formats.reader import Index, Sample, load
from ocrlab.errors import ConfigError, DataError
from ocrlab.evaluation.metrics import iou
from ocrlab.inference import page_inference, upper_bound


def box(x: float, y: float, width: float, height: float) -> np.ndarray:
    return np.array([[x, y], [x + width, y], [x + width, y + height], [x, y + height]], np.float32)


def page(polygons: list[np.ndarray], ignored: list[bool] | None = None, size: tuple[int, int] = (640, 480)) -> Sample:
    flags = np.array(ignored or [False] * len(polygons), bool)
    texts = tuple("###" if flag else "word" for flag in flags)
    return Sample("page", Path("page.jpg"), tuple(polygons), flags, texts, None, *size)


def index(*samples: Sample) -> Index:
    return Index(list(samples), Counter(), [], Path("somewhere"), "val")


def swept(*samples: Sample, **settings: Any) -> list[upper_bound.Row]:
    plain: dict[str, Any] = {"long_sides": [640], "shrink_ratios": [0.5], "unclips": ["exact"]}
    return upper_bound.sweep(index(*samples), **{**plain, **settings})


LINES = [box(20, 20 + 60 * i, 300 + 40 * i, 30) for i in range(6)]


def test_perfect_maps_of_plain_lines_reach_hmean_1_with_exact_unclip_only() -> None:
    rows = swept(page(LINES), shrink_ratios=[0.4, 0.6], unclips=["exact", 1.5])
    assert [row.setting for row in rows] == [(640, 0.4, "exact"), (640, 0.4, 1.5), (640, 0.6, "exact"), (640, 0.6, 1.5)]
    by = {row.setting: row.hmean for row in rows}
    assert by[640, 0.4, "exact"] == {0.5: 1.0, 0.7: 1.0, 0.8: 1.0} == by[640, 0.6, "exact"]
    assert by[640, 0.4, 1.5][0.7] < 0.2  # the published pair of 0.4 and 1.5 leaves lines too thin
    assert upper_bound.best(rows).unclip == "exact"


def test_it_goes_through_the_very_path_of_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    path = page_inference.regions

    def watched(*args: Any) -> Any:
        calls.append(args)
        return path(*args)

    monkeypatch.setattr(page_inference, "regions", watched)
    config = apply(Config(), ["post.threshold=0.35", "evaluate.long_side=320"])
    [row] = swept(page(LINES), long_sides=[320], shrink_ratios=[0.7], config=config, shape="polygon")
    (heat, _warp, size, post, ratio), _coarse = calls
    assert heat.shape == (256, 320) and heat.dtype == np.float32 and set(np.unique(heat)) == {0, 1}
    assert (size, ratio, post.threshold, post.shape) == ((640, 480), 0.7, 0.35, "polygon")
    match = iou.match(LINES, np.zeros(6, bool), path(*calls[0]).polygons)
    assert row.hmean == {t: match.hmean(t) for t in iou.THRESHOLDS}


def test_boxes_that_vanish_are_too_thin_or_merge_are_named() -> None:
    tiny, flat = box(500, 20, 30, 2), box(400, 100, 200, 7)
    left, right = box(20, 400, 100, 40), box(119, 400, 100, 40)  # they overlap, so shrinking leaves a gap
    [row] = swept(page([*LINES, tiny, flat, left, right]))
    assert [(b.page, b.index) for b in row.vanished] == [("page", 6)] and row.vanished[0].short == 2.0
    assert [b.index for b in row.thin] == [7] and row.merged == ()
    over = box(60, 400, 100, 40)
    [row] = swept(page([left, over, box(300, 20, 100, 40)]))
    assert [[b.index for b in group] for group in row.merged] == [[0, 1]]
    assert row.hmean[0.8] < 1 and row.bins == {"< 48 px": (3, 1)}


def test_what_features_of_stride_4_cannot_hold_is_softened() -> None:
    heat = np.zeros((64, 64), np.float32)
    heat[16:32, 16:48] = 1
    assert ((upper_bound.through_stride(heat) > 0.5) != (heat > 0.5)).sum() == 4  # only its corners go
    heat[40:42] = 1
    soft = upper_bound.through_stride(heat)
    assert soft.dtype == np.float32 and soft[20:28, 20:44].min() == 1 and 0.2 < soft[40:42].max() <= 0.5
    assert upper_bound.through_stride(np.ones((1, 3), np.float32)).tolist() == [[1, 1, 1]]
    crossed = swept(page([box(20, 21 + 31 * i, 300, 12) for i in range(10)]), shrink_ratios=[0.5])[0]
    assert crossed.coarse[0.8] < crossed.hmean[0.8]


@pytest.mark.parametrize("samples", [[], [page([])], [page(LINES, [True] * 6)]])
def test_nothing_that_counts_is_an_error(samples: list[Sample]) -> None:
    with pytest.raises(DataError, match="a box that is not ignored"):
        swept(*samples)


@pytest.mark.parametrize("wrong", [{"long_sides": [32]}, {"shrink_ratios": [1.0]}, {"unclips": [0.0]}])
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        swept(page(LINES), **wrong)


def test_real_receipts_need_their_resolution_and_an_exact_unclip(shared: Path) -> None:
    index = load(shared / "data" / "sroie", "val")
    index.samples = index.samples[:4]
    rows = upper_bound.sweep(index, long_sides=[640, 1280], shrink_ratios=[0.4, 0.6], unclips=["exact", 1.5])
    by = {row.setting: row.hmean[0.7] for row in rows}
    assert by[1280, 0.6, "exact"] > 0.98 and by[640, 0.4, "exact"] < 0.9
    assert by[1280, 0.4, 1.5] < by[1280, 0.4, "exact"] - 0.2
