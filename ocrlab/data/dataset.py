"""Pages as training crops and as whole pages.

A training sample goes one way, from top to bottom: PageOrder chooses a page, Crops reads it, training_crop warps it and
draws its target maps, collate makes the Batch that the network and the loss get. Page order is a pure function of seed
and epoch; augmentation is one of seed, epoch and page. Neither depends on the number of workers or on where a run was
interrupted, which is what makes resuming exact.
"""

from __future__ import annotations

import faulthandler
import functools
import multiprocessing.util
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from ocrlab.config.schema import Config
from ocrlab.data import target_maps, transforms
from ocrlab.data.annotations import PageError, Problem, page_errors
from ocrlab.data.formats.reader import Sample
from ocrlab.data.image_cache import Cache
from ocrlab.data.image_io import read_image
from ocrlab.data.shards.dataset import Samples
from ocrlab.errors import DataError
from ocrlab.run_folder import heartbeat


class PageOrder(Sampler[tuple[int, int]]):
    """Yields (epoch, page) for the positions start..stop-1 of an endless walk: every epoch is a fresh permutation.

    Of `world` ranks, rank r takes every `world`-th batch of the same epoch, beginning with batch r: together
    they see each position once. `start` and `stop` then count the positions of this rank, and `seen` is where all of
    them go on in the walk, start * world where it was walked by as many from its beginning.
    """

    def __init__(
        self,
        pages: int,
        seed: int,
        stop: int,
        start: int = 0,
        *,
        batch: int = 1,
        rank: int = 0,
        world: int = 1,
        first_position: int | None = None,
    ) -> None:
        self.pages, self.seed, self.start, self.stop = pages, seed, start, stop
        self.batch, self.rank, self.world = batch, rank, world
        self.first_position = start * world if first_position is None else first_position

    def __len__(self) -> int:
        return self.stop  # also what was done before: Lightning counts batches from the start of the run

    def positions(self) -> Iterator[int]:
        """Yield the positions of this rank in the walk of all."""
        for own in range(self.stop - self.start):
            batch, crop = divmod(own, self.batch)
            yield self.first_position + (batch * self.world + self.rank) * self.batch + crop

    def __iter__(self) -> Iterator[tuple[int, int]]:
        epoch, order = -1, np.empty(0, dtype=np.int64)
        for position in self.positions():
            if position // self.pages != epoch:
                epoch = position // self.pages
                order = np.random.default_rng([self.seed, epoch]).permutation(self.pages)
            yield epoch, int(order[position % self.pages])


Crop = tuple[NDArray[np.uint8], target_maps.Targets, str, list[str]]  # pixels, maps, name of the page, problems


class Crops(Dataset[Crop]):
    """Training crops with targets; an index is (epoch, page). A page that cannot be read is replaced by the next."""

    def __init__(self, samples: Sequence[Sample], config: Config) -> None:
        self.samples, self.config = samples, config
        self.cache = Cache(cache_size(config) / max(1, config.runtime.workers or 0))  # each worker has its own

    def __len__(self) -> int:
        return len(self.samples)

    def sample_name(self, index: tuple[int, int]) -> str:
        """Return the name of the page at an index (for the flight recorder)."""
        return name_at(self.samples, index[1])

    def __getitem__(self, index: tuple[int, int]) -> Crop:
        epoch, page = index
        problems: list[str] = []
        for step in range(len(self.samples)):
            place = (page + step) % len(self.samples)
            name = name_at(self.samples, place)
            heartbeat.beat(sample=name)
            try:
                sample = self.samples[place]
                image = read(sample, self.config, self.cache)
            except DataError as error:
                if self.config.runtime.strict:
                    raise
                problems.append(f"{name}: {error}")
                continue
            rng = np.random.default_rng([self.config.seed, epoch, page])
            crop, maps = training_crop(rng, image, sample, self.config)
            return crop, maps, sample.name, problems
        raise DataError("No page of the training set can be read", got="; ".join(problems[:3]), need="readable images")


def cache_size(config: Config) -> float:
    """Return how much memory decoded pages may take, in 10^9 bytes."""
    return config.runtime.cache_gb if config.runtime.cache == "memory" else 0.0


def read(sample: Sample, config: Config, cache: Cache) -> NDArray[np.uint8]:
    """Return the decoded page (H, W, 3) RGB uint8, from the cache where it is; raises DataError naming the file."""
    return cache.get(sample.image, partial(read_image, exif=config.exif))


def name_at(samples: Sequence[Sample], place: int) -> str:
    """Return the name of a page; of shards the index knows it, and nothing is read."""
    return samples.name_at(place) if isinstance(samples, Samples) else samples[place].name


def training_crop(
    rng: np.random.Generator, image: NDArray[np.uint8], sample: Sample, config: Config
) -> tuple[NDArray[np.uint8], target_maps.Targets]:
    """Return a random crop (crop, crop, 3) of a page and its target maps, all drawn from `rng`."""
    crop = config.crop
    polygons = [np.asarray(p) for p in sample.polygons]
    counted = [p for p, ignored in zip(polygons, sample.ignored, strict=True) if not ignored]
    warp = transforms.random_warp(rng, (image.shape[1], image.shape[0]), counted or polygons, crop, config.augment)
    canvas = transforms.photometric(rng, transforms.warp_image(image, warp, (crop, crop)), config.augment)
    # The published targets cut coordinates to whole pixels; of a warped polygon that would move it up and left by half
    # a pixel on average, and every detection with it. Rounding moves it nowhere.
    moved = [np.rint(transforms.warp_points(p, warp)) for p in polygons]
    visible = [(p.max(axis=0) > 0).all() and (p.min(axis=0) < crop).all() for p in moved]
    maps = target_maps.make(
        [p for p, s in zip(moved, visible, strict=True) if s],
        np.asarray(sample.ignored, dtype=bool)[np.asarray(visible, dtype=bool)],
        (crop, crop),
        **dict(config.targets),
    )
    return canvas, maps


@dataclass
class Batch:
    """Training crops (B, 3, H, W) uint8, the four target maps (B, 1, H, W), and their origin."""

    images: Tensor
    maps: tuple[Tensor, Tensor, Tensor, Tensor]  # shrink map and mask, threshold map and mask
    pages: list[str]
    problems: list[str] = field(default_factory=list)

    def pin_memory(self) -> Batch:
        """Return the batch in page-locked memory (called by DataLoader)."""
        maps = tuple(m.pin_memory() for m in self.maps)
        return Batch(self.images.pin_memory(), maps, self.pages, self.problems)  # type: ignore[arg-type]


def collate(items: Sequence[Crop]) -> Batch:
    """Return the batch of some crops; images are stored channels-last, as the encoder wants them."""
    images = torch.from_numpy(np.stack([crop for crop, *_ in items])).permute(0, 3, 1, 2)  # (B, 3, H, W)
    names = ("shrink_map", "shrink_mask", "threshold_map", "threshold_mask")
    maps = tuple(torch.from_numpy(np.stack([getattr(t, n) for _, t, *_ in items]))[:, None] for n in names)
    pages = [name for *_, name, _ in items]
    return Batch(images, maps, pages, [p for *_, problems in items for p in problems])  # type: ignore[arg-type]


@dataclass
class Page:
    """One whole page for validation: the canvas (H, W, 3) uint8 and the warp from the page to it."""

    sample: Sample
    canvas: NDArray[np.uint8]
    warp: NDArray[np.float64]


class Pages(Dataset[Page | None]):
    """Whole pages on their canvas, for validation; the index None is not a page, for a rank that has one less."""

    def __init__(self, samples: Sequence[Sample], config: Config) -> None:
        self.samples, self.config = samples, config
        self.cache = Cache(cache_size(config))

    def __len__(self) -> int:
        return len(self.samples)

    def sample_name(self, index: int | None) -> str:
        """Return the name of the page at an index (for the flight recorder)."""
        return "no page" if index is None else name_at(self.samples, index)

    def __getitem__(self, index: int | None) -> Page | None:
        return None if index is None else self.page(index)

    def page(self, index: int) -> Page:
        """Return the page at an index; raises DataError."""
        sample = self.samples[index]
        image = read(sample, self.config, self.cache)
        warp, canvas = transforms.letterbox((image.shape[1], image.shape[0]), self.config.evaluate)
        return Page(sample, transforms.warp_image(image, warp, canvas), warp)


def readable_pages(samples: Sequence[Sample], config: Config) -> tuple[Sequence[Sample], list[Problem]]:
    """Return the pages whose image can be decoded, and why others cannot; raises DataError if `strict` or if none can.

    Validation looks at the same pages every time, so what is left out is left out before it begins.
    """
    good: list[int] = []
    problems: list[Problem] = []
    for place in range(len(samples)):
        try:
            sample = samples[place]
            with page_errors(sample.image):
                read_image(sample.image, exif=config.exif)
            good.append(place)
        except DataError as error:
            if config.runtime.strict:
                raise
            problems.append(Problem(error.file if isinstance(error, PageError) else None, None, str(error)))
    if not good:
        raise DataError("No page of the validation set can be read", got=str(problems[0]), need="readable images")
    return samples.take(good) if isinstance(samples, Samples) else [samples[place] for place in good], problems


def worker_init() -> Callable[[int], None]:
    """Return what starts a loader worker: it runs on one thread, reports crashes, and survives a first SIGTERM.

    Two busy thread pools on few cores make steps many times slower.
    """
    return partial(_start_worker, _exit_flag(os.getpid()))


@functools.cache
def _exit_flag(_process: int) -> Tensor:
    """Return a flag (1,) uint8 that a process shares with its loader workers: it is 1 once the process leaves."""
    flag = torch.zeros(1, dtype=torch.uint8).share_memory_()
    multiprocessing.util.Finalize(None, flag.fill_, args=(1,), exitpriority=100)  # before its children get SIGTERM
    return flag


def _start_worker(flag: Tensor, _worker: int) -> None:
    """Start a loader worker.

    torch's signal handlers have just silenced faulthandler in it; with both a crash says what, and where. And its own
    would end the worker at a SIGTERM to all processes (a scheduler's, `ocrlab watch`'s), before training has saved: so
    the first SIGTERM is for the training, which stops in order and ends its workers; the second ends the worker.
    """

    def ignore_first_sigterm(number: int, _frame: object) -> None:
        if flag.item():  # the training's process leaves, and Python waits for ever for workers that are still up
            os._exit(0)  # as torch's own handler does
        signal.signal(number, signal.SIG_DFL)

    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    signal.signal(signal.SIGTERM, ignore_first_sigterm)
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)
    heartbeat.beat(phase="load")
