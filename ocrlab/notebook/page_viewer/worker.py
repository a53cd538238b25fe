"""What the inspect notebook asks for, in its watched child: pages through the network, maps through post-processing.

The network runs once a page; the last pages' maps are kept, so that a slider only costs the way from a map to polygons.
Shapes: H W canvas pixels, N ground truths, M detections, P points.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from ocrlab import safe_read
from ocrlab.config.schema import Post
from ocrlab.data import image_io, transforms
from ocrlab.data.dataset import name_at
from ocrlab.data.formats import reader
from ocrlab.errors import DataError
from ocrlab.evaluation.metrics import iou
from ocrlab.evaluation.postprocess.box_scores import kernels
from ocrlab.inference import page_inference
from ocrlab.inference.detector import Detector, newest_checkpoint, threads
from ocrlab.notebook.page_viewer.messages import Detections, DetectorInfo, PageList, Source, ViewedPage
from ocrlab.reports.html import page_images

CACHED_PAGES = 12  # pages whose maps stay; one of 1280 pixels takes 12 MB
SHARP = 1280  # pixels, long side of a page that can be zoomed
PDF = b"%PDF"


@dataclass
class CachedPage:
    """A page that went through the network."""

    view: ViewedPage
    canvas: NDArray[np.uint8]  # (H, W, 3), cut to the page
    heat: NDArray[np.float32]  # (H, W) with the canvas' padding, as it is decoded
    warp: NDArray[np.float64]
    threshold: NDArray[np.float32] | None = None  # the threshold map, once somebody wanted it


class PageWorker:
    """A detector with the pages of a data folder before it; its public methods are the questions that it answers."""

    def __init__(self) -> None:
        self.cache: OrderedDict[Source, CachedPage] = OrderedDict()
        self.samples: dict[str, Sequence[reader.Sample]] = {}

    def open(self, checkpoint: str, runs: str, data: str, exif: bool) -> DetectorInfo:
        """Load a detector; raises CheckpointError. `newest` is the best of the newest successful run."""
        threads()
        kernels()  # compiled or loaded before the first page
        if checkpoint == "newest":
            checkpoint = str(newest_checkpoint(Path(runs)))
        self.detector = Detector.load(checkpoint or "receipts")
        self.data, self.exif, config = data, exif, self.detector.config
        network, splits = f"{config.encoder} + {config.decoder}", reader.splits(Path(data))
        return DetectorInfo(self.detector.origin, network, config.post, config.targets.shrink_ratio, splits)

    def pages(self, split: str) -> PageList:
        """Return the names of the pages of a split; raises DataError."""
        index = reader.load(self.data, split, exif=self.exif)
        self.samples[split] = index.samples
        names = [name_at(index.samples, n) for n in range(len(index.samples))]
        return PageList(split, names, [str(problem) for problem in index.problems])

    def see(self, source: Source) -> ViewedPage:
        """Return a page as it is shown, after the network has seen it; raises DataError, PageError."""
        return self._page(source).view

    def judge(self, source: Source, post: Post) -> Detections:
        """Return what the settings make of a page's map, and how that agrees with its annotation."""
        page = self._page(source)
        view, shrink_ratio = page.view, self.detector.config.targets.shrink_ratio
        regions = page_inference.regions(page.heat, page.warp, (view.width, view.height), post, shrink_ratio)
        match = iou.match(view.truth, view.ignored, regions.polygons, thresholds=(0.5,))
        truth, detections = match.iou.shape
        best = match.iou.max(axis=0) if truth else np.zeros(detections)
        reached = match.iou.max(axis=1) if detections else np.zeros(truth)
        figures = (match.hmean(0.5), match.precision(0.5), match.recall(0.5)) if view.annotated else None
        agreed = (match.pairs[0.5], match.detection_counts, best, reached, figures)
        return Detections(regions.polygons, regions.scores, *agreed)

    def threshold(self, source: Source) -> str:
        """Return the threshold map of a page as a picture."""
        return page_images.encoded(self._threshold(self._page(source)), SHARP)

    def small(self, source: Source) -> tuple[str, str, str]:
        """Return small pictures of a page, its probability map and its threshold map, for a report."""
        page = self._page(source)
        height, width = page.canvas.shape[:2]
        maps = (page.heat[:height, :width], self._threshold(page))
        heat, threshold = (page_images.encoded(values) for values in maps)
        return page_images.encoded(page.canvas), heat, threshold

    def _page(self, source: Source) -> CachedPage:
        if source not in self.cache:
            self.cache[source] = self._detect(source)
        self.cache.move_to_end(source)
        while len(self.cache) > CACHED_PAGES:
            self.cache.popitem(last=False)
        return self.cache[source]

    def _detect(self, source: Source) -> CachedPage:
        """Read a page and take it through the network."""
        sample = None
        if isinstance(source.place, int):
            if source.split not in self.samples:
                self.pages(source.split)
            sample = self.samples[source.split][source.place]
            image, name = image_io.read_image(sample.image, exif=self.exif), sample.name
        else:
            image, name = read_upload(Path(source.place)), Path(source.place).name
        height, width = image.shape[:2]
        warp, size = transforms.letterbox((width, height), self.detector.config.evaluate)
        canvas = transforms.warp_image(image, warp, size)
        heat = page_inference.probability(self.detector.model, canvas, bf16=self.detector.bf16)
        across, down = round(width * warp[0, 0]), round(height * warp[1, 1])  # of the page on the canvas
        canvas = canvas[:down, :across]
        truth, ignored, texts = (
            (sample.polygons, sample.ignored, sample.texts) if sample else ((), np.zeros(0, bool), ())
        )
        peaks = np.array([_peak(heat, transforms.warp_points(polygon, warp)) for polygon in truth], np.float32)
        pictures = page_images.encoded(canvas, SHARP), page_images.encoded(heat[:down, :across], SHARP)
        view = ViewedPage(name, width, height, truth, ignored, texts, peaks, sample is not None, *pictures)
        return CachedPage(view, canvas, heat, warp)

    def _threshold(self, page: CachedPage) -> NDArray[np.float32]:
        """Return the threshold map (h, w) of a page without padding; it is made when it is first wanted."""
        if page.threshold is None:
            height, width = page.canvas.shape[:2]
            canvas = np.pad(page.canvas, [(0, -height % 32), (0, -width % 32), (0, 0)], mode="edge")
            with torch.inference_mode():
                maps = self.detector.model.eval()(torch.from_numpy(canvas)[None].permute(0, 3, 1, 2))
            page.threshold = maps.threshold[0, 0, :height, :width].numpy()
        return page.threshold


def _peak(heat: NDArray[np.float32], polygon: NDArray[np.float32]) -> float:
    """Return the highest probability inside a ground truth: what a threshold must be below to find it."""
    corners = np.rint(polygon).astype(np.int32)
    x, y, width, height = cv2.boundingRect(corners)
    x, y = max(x, 0), max(y, 0)
    window = heat[y : y + height, x : x + width]
    inside = np.zeros(window.shape, np.uint8)
    if window.size:
        cv2.fillPoly(inside, [corners - (x, y)], 1)
    return float((window * inside).max(initial=0.0))


def read_upload(path: Path) -> NDArray[np.uint8]:
    """Return a file as RGB (H, W, 3) uint8; raises DataError naming the file only.

    Unlike a page of a data folder it is turned as its EXIF orientation asks: people expect what their viewer shows.
    """
    try:
        with safe_read.open_file(path) as file:
            if file.read(1024).lstrip().startswith(PDF):
                do = "Convert its pages to images first: pdftoppm -r 150 -png FILE page"
                raise DataError(f"{path.name} is a PDF", need="an image", do=do)
        return image_io.read_image(path, exif=True)
    except OSError as error:
        raise DataError(f"{path.name} cannot be read", got=error.strerror) from error
    except DataError as error:
        what = error.what.replace(str(path), path.name)
        raise DataError(what, got=error.got, need=error.need, do=error.do) from error
