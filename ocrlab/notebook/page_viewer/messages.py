"""What passes between the kernel and the detector's child: questions by page, and what comes back of a page.

Nothing here imports torch or OpenCV: the kernel needs neither. Shapes: N ground truths, M detections, P points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ocrlab.config.schema import Post


class Source(NamedTuple):
    """Which page is meant: a position in a split, or with an empty `split` the path of a file."""

    split: str
    place: int | str


@dataclass(frozen=True)
class DetectorInfo:
    """A detector: which one it is in words, what it is made of, its settings, and the splits of the data folder."""

    origin: str
    network: str
    post: Post
    shrink_ratio: float
    splits: list[str]


@dataclass(frozen=True)
class PageList:
    """The pages of a split by name, and what is wrong with those that were left out."""

    split: str
    names: list[str]
    problems: list[str]


@dataclass(frozen=True)
class ViewedPage:
    """A page after the network has seen it; polygons are in its own pixels, pictures are data URIs."""

    name: str
    width: int
    height: int
    truth: tuple[NDArray[np.float32], ...]
    ignored: NDArray[np.bool_]  # (N,)
    texts: tuple[str, ...]
    peaks: NDArray[np.float32]  # (N,) highest probability inside each ground truth
    annotated: bool
    image: str
    heat: str


@dataclass(frozen=True)
class Detections:
    """What the settings make of a page's map, and how that agrees with the annotation at an IoU above 0.5."""

    polygons: list[NDArray[np.float32]]
    scores: NDArray[np.float32]  # (M,)
    pairs: list[tuple[int, int]]  # ground truth, detection
    counts: NDArray[np.bool_]  # (M,) False for detections on ignored text
    best: NDArray[np.float64]  # (M,) best IoU of each detection
    reached: NDArray[np.float64]  # (N,) best IoU of each ground truth
    figures: tuple[float, float, float] | None  # hmean, precision, recall; None without annotation
