"""What the inspect notebook asks for, in its watched child: pages through the network, maps through post-processing.

The network runs once a page; the last pages' maps are kept, so that a slider only costs the way from a map to polygons.
Shapes: H W canvas pixels, N ground truths, M detections, P points.
"""

from __future__ import annotations

import base64
import io
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ocrlab import safe_read
from ocrlab.config.schema import Post
from ocrlab.data import image_io, transforms
from ocrlab.data.dataset import name_at
from ocrlab.data.formats import icdar, reader
from ocrlab.data.image_formats import open_image
from ocrlab.errors import DataError
from ocrlab.evaluation.metrics import iou
from ocrlab.evaluation.postprocess.box_scores import kernels
from ocrlab.inference import page_inference
from ocrlab.inference.detector import Detector, newest_checkpoint, threads
from ocrlab.notebook.page_viewer.messages import Detections, DetectorInfo, PageList, Source, ViewedPage
from ocrlab.reports.html import page_images

CACHED_PAGES = 12  # pages whose maps stay; one of 1280 pixels takes 12 MB
SHARP = 1280  # pixels, long side of a page that can be zoomed
LEVELS = 64  # of a map's colours; the picture of a threshold map is a third smaller for it
PDF = b"%PDF"


@dataclass
class CachedPage:
    """A page that went through the network."""

    canvas: NDArray[np.uint8]  # (H, W, 3), cut to the page
    heat: NDArray[np.float32]  # (H, W) with the canvas' padding, as it is decoded
    inner: tuple[int, int]  # width and height of the page on the canvas
    warp: NDArray[np.float64]
    size: tuple[int, int]  # width and height of the page
    name: str
    notes: list[str]
    seconds: float  # that the network took
    truth: tuple[NDArray[np.float32], ...] = ()
    ignored: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    texts: tuple[str, ...] = ()
    annotated: bool = False
    threshold: NDArray[np.float32] | None = None  # the threshold map, once somebody wanted it

    def inside(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a map (H, W) without the padding of the canvas."""
        return values[: self.inner[1], : self.inner[0]]


class PageWorker:
    """A detector with the pages of a data folder before it."""

    def __init__(self) -> None:
        self.cache: OrderedDict[Source, CachedPage] = OrderedDict()
        self.samples: dict[str, Sequence[reader.Sample]] = {}

    def answers(self) -> dict[str, Callable[..., Any]]:
        """Return the questions that it answers."""
        return {name: getattr(self, name) for name in ("open", "pages", "see", "judge", "threshold", "small")}

    def open(self, checkpoint: str, runs: str, data: str, exif: bool) -> DetectorInfo:
        """Load a detector; raises CheckpointError. `newest` is the best of the newest successful run."""
        threads()
        kernels()  # compiled or loaded before the first page, whose time is shown
        if checkpoint == "newest":
            checkpoint = str(newest_checkpoint(Path(runs)))
        self.detector = detector = Detector.load(checkpoint or "receipts")
        self.data, self.exif = data, exif
        config = detector.config
        network = f"{config.encoder} + {config.decoder}"
        shrink_ratio, splits = config.targets.shrink_ratio, reader.splits(Path(data))
        return DetectorInfo(detector.origin, network, config.post, shrink_ratio, splits)

    def pages(self, split: str) -> PageList:
        """Return the names of the pages of a split; raises DataError."""
        index = reader.load(self.data, split, exif=self.exif)
        self.samples[split] = index.samples
        names = [name_at(index.samples, n) for n in range(len(index.samples))]
        return PageList(split, names, [str(problem) for problem in index.problems])

    def see(self, source: Source) -> ViewedPage:
        """Return a page as it is shown, after the network has seen it; raises DataError, PageError."""
        page = self._page(source)
        image, heat = page_images.encoded(page.canvas, SHARP), tinted(page.inside(page.heat))
        facts = (page.name, *page.size, page.truth, page.ignored, page.texts, self._peaks(page), page.annotated)
        return ViewedPage(*facts, page.inner, page.notes, page.seconds, image, heat)

    def judge(self, source: Source, post: Post, mask: bool = False) -> Detections:
        """Return what the settings make of a page's map, and how that agrees with its annotation."""
        page = self._page(source)
        began = time.perf_counter()
        shrink_ratio = self.detector.config.targets.shrink_ratio
        regions = page_inference.regions(page.heat, page.warp, page.size, post, shrink_ratio)
        match = iou.match(page.truth, page.ignored, regions.polygons, thresholds=(0.5,))
        seconds = time.perf_counter() - began
        truth, detections = match.iou.shape
        best = match.iou.max(axis=0) if truth else np.zeros(detections)
        reached = match.iou.max(axis=1) if detections else np.zeros(truth)
        figures = (match.hmean(0.5), match.precision(0.5), match.recall(0.5)) if page.annotated else None
        agreed = (match.pairs[0.5], match.detection_counts, best, reached, figures)
        shown = png(Image.fromarray(page.inside(page.heat) <= np.float32(post.threshold))) if mask else ""  # text dark
        return Detections(regions.polygons, regions.scores, *agreed, seconds, icdar.text_of(regions.polygons), shown)

    def threshold(self, source: Source) -> str:
        """Return the threshold map of a page as a picture."""
        return tinted(self._threshold(self._page(source)))

    def small(self, source: Source) -> tuple[str, str, str]:
        """Return small pictures of a page, its probability map and its threshold map, for a report."""
        page = self._page(source)
        height, width = page.canvas.shape[:2]
        scale = min(1.0, page_images.LONGEST / max(height, width))
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        maps = (page.inside(page.heat), self._threshold(page))
        heat, threshold = (tinted(cv2.resize(values, size, interpolation=cv2.INTER_AREA)) for values in maps)
        return page_images.encoded(page.canvas), heat, threshold

    def _page(self, source: Source) -> CachedPage:
        if source not in self.cache:
            self.cache[source] = self._through(source)
        self.cache.move_to_end(source)
        while len(self.cache) > CACHED_PAGES:
            self.cache.popitem(last=False)
        return self.cache[source]

    def _through(self, source: Source) -> CachedPage:
        """Read a page and take it through the network."""
        sample, notes = None, list[str]()
        if isinstance(source.place, int):
            if source.split not in self.samples:
                self.pages(source.split)
            sample = self.samples[source.split][source.place]
            image, name = image_io.read_image(sample.image, exif=self.exif), sample.name
        else:
            (image, notes), name = read_upload(Path(source.place)), Path(source.place).name
        size = (image.shape[1], image.shape[0])
        warp, canvas = transforms.letterbox(size, self.detector.config.evaluate)
        pixels = transforms.warp_image(image, warp, canvas)
        inner = (round(size[0] * warp[0, 0]), round(size[1] * warp[1, 1]))
        began = time.perf_counter()
        heat = page_inference.probability(self.detector.model, pixels, bf16=self.detector.bf16)
        seconds = time.perf_counter() - began
        page = CachedPage(pixels[: inner[1], : inner[0]], heat, inner, warp, size, name, notes, seconds)
        if sample is not None:
            page.truth, page.ignored, page.texts = sample.polygons, sample.ignored, sample.texts
            page.annotated = True
        return page

    def _threshold(self, page: CachedPage) -> NDArray[np.float32]:
        """Return the threshold map (h, w) of a page without padding; it is made when it is first wanted."""
        if page.threshold is None:
            width, height = page.inner
            edge = [(0, -n % 32) for n in (height, width)]
            canvas = np.pad(page.canvas, [*edge, (0, 0)], mode="edge")
            with torch.inference_mode():
                maps = self.detector.model.eval()(torch.from_numpy(canvas)[None].permute(0, 3, 1, 2))
            page.threshold = maps.threshold[0, 0, :height, :width].numpy()
        return page.threshold

    def _peaks(self, page: CachedPage) -> NDArray[np.float32]:
        """Return the highest probability (N,) inside each ground truth: what a threshold must be below to find it."""
        peaks = np.zeros(len(page.truth), np.float32)
        for n, polygon in enumerate(page.truth):
            corners = np.rint(transforms.warp_points(polygon, page.warp)).astype(np.int32)
            x, y, width, height = cv2.boundingRect(corners)
            x, y = max(x, 0), max(y, 0)
            window = page.heat[y : y + height, x : x + width]
            if window.size:
                inside = np.zeros(window.shape, np.uint8)
                cv2.fillPoly(inside, [corners - (x, y)], 1)
                peaks[n] = float((window * inside).max())
        return peaks


def tinted(values: NDArray[np.float32]) -> str:
    """Return a map (H, W) in 0..1 as data URI, in 64 of viridis' colours; without matplotlib, unlike `page_images`."""
    levels = np.rint(np.clip(values, 0, 1) * (LEVELS - 1)).astype(np.uint8)
    colours = cv2.applyColorMap(np.linspace(0, 255, LEVELS).astype(np.uint8)[:, None], cv2.COLORMAP_VIRIDIS)
    image = Image.fromarray(levels, "P")
    image.putpalette(colours[:, 0, ::-1].tobytes())
    return png(image)


def png(image: Image.Image) -> str:
    """Return an image as data URI."""
    data = io.BytesIO()
    image.save(data, "png", compress_level=2)
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode('ascii')}"


def read_upload(path: Path) -> tuple[NDArray[np.uint8], list[str]]:
    """Return a file as RGB (H, W, 3) uint8, and what was done to it in words; raises DataError naming the file only.

    Unlike a page of a data folder it is turned as its EXIF orientation asks: people expect what their viewer shows.
    """
    try:
        with safe_read.open_file(path) as file:
            if file.read(1024).lstrip().startswith(PDF):
                do = "Convert its pages to images first: pdftoppm -r 150 -png FILE page"
                raise DataError(f"{path.name} is a PDF", need="an image", do=do)
        header = image_io.read_header(path)
        image = image_io.read_image(path, exif=True)
    except OSError as error:
        raise DataError(f"{path.name} cannot be read", got=error.strerror) from error
    except DataError as error:
        raise DataError(
            error.what.replace(str(path), path.name), got=error.got, need=error.need, do=error.do
        ) from error
    notes = [f"turned as its EXIF orientation {header.orientation} asks"] if header.orientation > 1 else []
    return image, notes + _conversions(path)


def _conversions(path: Path) -> list[str]:
    """Return in words what of a file is not looked at, or was converted."""
    try:
        with safe_read.open_file(path) as file, open_image(file) as image:
            frames, mode = getattr(image, "n_frames", 1), image.mode
    except Exception:  # the pixels are there already; this only adds words
        return []
    notes = [f"the first of its {frames} frames"] if frames > 1 else []
    notes += ["CMYK, converted to RGB"] if mode == "CMYK" else []
    notes += ["16 bits a channel, of which the high 8 are used"] if mode.startswith("I;16") else []
    return notes + (["transparent pixels made white"] if mode in image_io.ALPHA_MODES else [])
