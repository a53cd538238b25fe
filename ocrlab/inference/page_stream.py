"""Many pages through a detector: read ahead in threads, the network here, post-processing in the same threads.

No more than `ahead` pages are in memory, whatever the stage, and results come in the order of the pages. Pages of one
canvas size may share a batch; nothing is padded for it, so that a page's result does not depend on its neighbours.

Shapes: B batch, H W canvas pixels.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ocrlab.config.schema import Config
from ocrlab.data import image_io, transforms
from ocrlab.data.annotations import TOO_LARGE, PageError, Problem, page_errors
from ocrlab.errors import ShapeError
from ocrlab.evaluation import postprocess
from ocrlab.hardware import host
from ocrlab.inference import page_inference
from ocrlab.records import Prediction

if TYPE_CHECKING:
    from ocrlab.inference.detector import Detector

Image = NDArray[np.uint8]
Source = Image | Path | str
T = TypeVar("T")

THREADS = 4  # that read and post-process; one GPU is fed by as many
OUT_OF_MEMORY = re.compile(r"out of memory|(?:can't|could not|failed to) allocate", re.IGNORECASE)  # in torch's words
BATCH = 8  # pages on a GPU; on a CPU one page fills the cores, and more only take memory


@dataclass(frozen=True)
class Page:
    """One page that was read: where from, its pixels while somebody needs them, and its canvas (H, W, 3)."""

    source: Source
    size: tuple[int, int]  # width, height in its own pixels
    image: Image | None
    canvas: Image
    warp: NDArray[np.float64]

    def prediction(self, regions: postprocess.Regions) -> Prediction:
        """Return what was found on the page as a record; an array has no name."""
        name = "" if isinstance(self.source, np.ndarray) else Path(self.source).name
        return Prediction(name, *self.size, regions.to_detections())


@dataclass
class PageInFlight(Generic[T]):
    """A page on its way: first it is read, then its map is made, then it is finished."""

    page: Future[Page | Problem]
    result: Future[T | Problem] | None = None


def stream_pages(
    detector: Detector,
    sources: Iterable[Source | Problem],
    finish: Callable[[Page, postprocess.Regions], T],
    *,
    keep_images: bool = False,
    ahead: int | None = None,
    batch: int | None = None,
) -> Generator[T | Problem, None, None]:
    """Yield `finish(page, regions)` of every source in order, or why there is no result.

    `finish` runs in a thread; what it raises costs its page only. Ending the iteration early ends the threads.
    """
    batch = batch or (BATCH if next(detector.model.parameters()).is_cuda else 1)
    ahead = max(1, ahead or 2 * batch + THREADS)
    workers = max(1, min(THREADS, ahead, host.cores()))
    feed, window = iter(sources), deque[PageInFlight[T]]()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="ocrlab-pages")
    try:
        while True:
            for source in islice(feed, ahead - len(window)):
                window.append(PageInFlight(pool.submit(read, source, detector.config, keep_images)))
            if not window:
                return
            if waiting := [flight for flight in window if flight.result is None]:
                _compute(detector, waiting, batch, pool, finish)
            busy = any(flight.result is None for flight in window)  # the network has work: do not wait for threads
            while window and (result := window[0].result) and (result.done() or not busy):
                window.popleft()
                yield result.result()
                busy = True
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def read(source: Source | Problem, config: Config, keep_image: bool) -> Page | Problem:
    """Return a page on its canvas, or why it cannot be had, which may be known already."""
    if isinstance(source, Problem):
        return source
    try:
        with page_errors(_file(source)):
            if isinstance(source, Path | str):
                image = image_io.read_image(source, exif=config.exif)
            else:
                image = check_image(source)
            size = (image.shape[1], image.shape[0])
            warp, canvas = transforms.letterbox(size, config.evaluate)
            return Page(source, size, image if keep_image else None, transforms.warp_image(image, warp, canvas), warp)
    except PageError as error:
        return error.problem


def _file(source: Source) -> Path | None:
    """Return the file that a page comes from; an array has none."""
    return Path(source) if isinstance(source, Path | str) else None


def check_image(image: Image) -> Image:
    """Return an image (H, W, 3) uint8 with its pixels in a row; raises ShapeError for anything else."""
    array = isinstance(image, np.ndarray)
    if not array or image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
        got = f"{image.dtype} {image.shape}" if array else type(image).__name__
        do = "Of a PIL image take np.asarray(image.convert('RGB'))"
        raise ShapeError("This is not an RGB image", got=got, need="a NumPy array (H, W, 3) of uint8, not empty", do=do)
    return np.ascontiguousarray(image)


def _compute(
    detector: Detector,
    waiting: Sequence[PageInFlight[T]],
    batch: int,
    pool: ThreadPoolExecutor,
    finish: Callable[[Page, postprocess.Regions], T],
) -> None:
    """Take the first page that waits, and those of its canvas size that are there too, through the network."""
    first = waiting[0].page.result()
    if isinstance(first, Problem):
        waiting[0].result = Future()
        waiting[0].result.set_result(first)
        return
    chosen = [(waiting[0], first)]
    for flight in waiting[1:]:
        page = flight.page.result() if len(chosen) < batch and flight.page.done() else None
        if isinstance(page, Page) and page.canvas.shape == first.canvas.shape:
            chosen.append((flight, page))
    try:
        canvases = np.stack([page.canvas for _, page in chosen])  # (B, H, W, 3)
        heats = page_inference.probabilities(detector.model, canvases, bf16=detector.bf16)  # (B, H, W)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not OUT_OF_MEMORY.search(str(error)):
            raise  # the network or the device, not the page
        if len(chosen) > 1:
            _compute(detector, waiting, 1, pool, finish)
        else:
            waiting[0].result = Future()
            waiting[0].result.set_result(Problem(_file(first.source), None, f"{TOO_LARGE}."))
        return
    config = detector.config

    def finished(page: Page, heat: NDArray[np.float32]) -> T | Problem:
        ratio = config.targets.shrink_ratio
        try:
            with page_errors(_file(page.source)):
                return finish(page, page_inference.regions(heat, page.warp, page.size, config.post, ratio))
        except PageError as error:
            return error.problem

    for (flight, page), heat in zip(chosen, heats, strict=True):
        flight.result = pool.submit(finished, page, heat)
