"""What goes to the tracker besides figures: pictures of pages, and the best checkpoint. Nothing here raises."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab.data import transforms
from ocrlab.data.dataset import Page
from ocrlab.errors import OcrlabError
from ocrlab.geometry import Polygon
from ocrlab.inference import checkpoint, pretrained

SHOWN = 4  # pages of a validation
SIDE = 640  # pixels of a picture at most
TRUTH, DETECTED = (40, 110, 220), (225, 70, 20)  # RGB: annotated boxes below, what was found above


class Tracker(Protocol):
    """What is used of `tracking.Tracker`."""

    folder: Path

    @property
    def on(self) -> bool:
        """Whether anybody listens."""

    def artifact(self, file: Path, digest: str, about: Mapping[str, float]) -> None:
        """Take a file."""

    def warn(self, text: str) -> None:
        """Print one line."""


def shown(index: int, batches: Sequence[int | float]) -> bool:
    """Tell whether the page at `index` of a validation is one of the few that are shown, spread over all."""
    count = int(sum(batches))
    return index in np.linspace(0, count - 1, min(SHOWN, count)).astype(int)


def picture(folder: Path, page: Page, detections: Sequence[Polygon], step: int, index: int) -> list[tuple[str, Path]]:
    """Write a picture of one page below `folder`/flight, and return it with its caption; nothing where that fails."""
    place = folder / "flight" / "pictures"
    file = place / f"step{step:06d}-{index:04d}.jpg"
    with contextlib.suppress(OSError, cv2.error):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        good, data = cv2.imencode(".jpg", draw(page, detections)[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 85])
        if good:
            file.write_bytes(data.tobytes())
            return [(page.sample.name, file)]
    return []


def draw(page: Page, detections: Sequence[Polygon]) -> NDArray[np.uint8]:
    """Return a page (H, W, 3) RGB of at most SIDE pixels: annotated boxes blue, those found red."""
    height, width = page.canvas.shape[:2]
    scale = min(1.0, SIDE / max(height, width))
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    canvas = np.array(cv2.resize(page.canvas, size, interpolation=cv2.INTER_AREA), np.uint8)
    counted = [p for p, ignored in zip(page.sample.polygons, page.sample.ignored, strict=True) if not ignored]
    for polygons, color in ((counted, TRUTH), (detections, DETECTED)):
        points = [np.rint(transforms.warp_points(p, page.warp) * scale).astype(np.int32) for p in polygons]
        cv2.polylines(canvas, points, isClosed=True, color=color, thickness=1, lineType=cv2.LINE_AA)
    return canvas


def send_best(tracker: Tracker, best: Path | None, metrics: Mapping[str, float]) -> None:
    """Hand the best checkpoint to the tracker, without what it says of this machine, and its SHA-256."""
    if best is None or not tracker.on:
        return
    copy = tracker.folder / "flight" / "artifact" / best.name
    try:
        checkpoint.share(best, copy)
        tracker.artifact(copy, pretrained.sha256(copy), metrics)
    except (OSError, OcrlabError) as error:
        tracker.warn(f"the best checkpoint is not sent: {error}")
