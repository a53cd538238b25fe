"""The way from a probability map to scored regions: `decode`, after Liao et al. 2020, Differentiable Binarization.

Shapes: h w map pixels, N regions, P points.

Coordinates: the centre of a map pixel has whole numbers, the first one is (0, 0). `to_page` maps those to the same
convention on the page, so a page that was resized by s comes back by 1/s and a shift of (1/s - 1) / 2.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ocrlab.errors import ConfigError, ShapeError
from ocrlab.evaluation.postprocess import contours, polygons, quads
from ocrlab.evaluation.postprocess.box_scores import Map, text_mask
from ocrlab.records import Detection


@dataclass(frozen=True)
class Regions:
    """Text regions of one page: `polygons` are (P, 2) float32 in page pixels, `scores` (N,) float32 in 0..1."""

    polygons: list[NDArray[np.float32]]
    scores: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.polygons)

    def to_detections(self) -> list[Detection]:
        """Return the regions as records, ready for JSON."""
        pairs = zip(self.polygons, self.scores.tolist(), strict=True)
        return [Detection(polygon.tolist(), score) for polygon, score in pairs]


def decode(
    probability: Map,
    *,
    threshold: float = 0.5,
    box_threshold: float = 0.5,
    unclip: Literal["exact"] | float = "exact",
    shrink_ratio: float = 0.4,
    shape: Literal["quad", "polygon"] = "quad",
    max_candidates: int = 1000,
    min_size: float = 3.0,
    to_page: NDArray[np.float64] | None = None,
    size: tuple[int, int] | None = None,
) -> Regions:
    """Return the regions of a probability map (h, w) float32 in 0..1, in page pixels.

    A pixel above `threshold` is text; a connected group of them is a candidate, kept if its mean probability reaches
    `box_threshold` and its short side, from pixel centre to pixel centre, `min_size` map pixels.
    `unclip` is "exact", the inverse of the shrink by `shrink_ratio`, or the published ratio (Liao et al. take 1.5 for
    quads, 2.0 for polygons). With a ratio everything is as published: whole pixels, outlines of holes are candidates
    too, and the first `max_candidates` from the bottom of the page count. With "exact" the largest count.
    `to_page` (2, 3) maps map pixels to page pixels (default: the same), `size` is the page's (width, height), to which
    regions are cut by moving corners (default: the map's, or not at all where `to_page` is given); what lies outside
    is left out.

    Raises ShapeError for a map of another shape or dtype, with NaN or values outside 0..1, or a `to_page` that is not
    (2, 3); ConfigError for an `unclip` or `shape` that does not exist.
    """
    if not isinstance(probability, np.ndarray) or probability.ndim != 2 or probability.dtype != np.float32:
        array = hasattr(probability, "shape")
        got = f"{probability.dtype} {probability.shape}" if array else type(probability).__name__
        need = "a NumPy array (h, w) of float32, one page at a time"
        raise ShapeError("This is not a probability map", got=got, need=need)
    if to_page is not None and (np.shape(to_page) != (2, 3) or not np.isfinite(to_page).all()):
        raise ShapeError("to_page must map pixels to the page", got=np.shape(to_page), need="a finite (2, 3) array")
    if shape not in ("quad", "polygon"):
        raise ConfigError("Unknown shape of regions", got=repr(shape), need="quad or polygon")
    if unclip != "exact" and not (isinstance(unclip, int | float) and unclip > 0):
        raise ConfigError("The unclip ratio cannot be used", got=repr(unclip), need='"exact" or a ratio above 0')
    if probability.size == 0:
        return Regions([], np.zeros(0, np.float32))
    heat = np.ascontiguousarray(probability)
    mask = text_mask(heat, threshold)
    if size is None and to_page is None:
        size = (probability.shape[1], probability.shape[0])
    kind = quads if shape == "quad" else polygons
    if unclip == "exact":
        outlines = contours.largest(mask, max_candidates)
        regions, scores = kind.exact(heat, outlines, shrink_ratio, min_size, box_threshold)
    else:
        outlines = contours.last(mask, max_candidates)
        regions, scores = kind.published(heat, outlines, float(unclip), min_size, box_threshold)
    shapes, there = on_page(regions, to_page, size, whole=unclip != "exact")
    return Regions(shapes, np.asarray(scores, dtype=np.float32)[there])


def on_page(
    regions: Sequence[NDArray[np.floating]] | NDArray[np.floating],
    to_page: NDArray[np.float64] | None,
    size: tuple[int, int] | None,
    *,
    whole: bool,
) -> tuple[list[NDArray[np.float32]], NDArray[np.intp]]:
    """Return polygons (P, 2) in page pixels, rounded if they must be `whole`, with the corners moved into the page.

    Those of which nothing is left, as they lie in what was added around the page, are left out; the positions of the
    others come with them.
    """
    if not len(regions):
        return [], np.zeros(0, np.intp)
    points = np.concatenate(regions).astype(np.float64)
    if to_page is not None:
        points = points @ np.asarray(to_page)[:, :2].T + np.asarray(to_page)[:, 2]
    if whole:
        points = np.round(points)
    if size is not None:
        points = np.clip(points, 0, size)
    small, ends = points.astype(np.float32), list(itertools.accumulate(len(polygon) for polygon in regions))
    starts = [0, *ends[:-1]]
    there = np.flatnonzero((np.maximum.reduceat(small, starts) > np.minimum.reduceat(small, starts)).all(axis=1))
    return [small[starts[i] : ends[i]] for i in there], there
