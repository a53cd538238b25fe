"""Whether the data is what it seems: the same by seed and with workers, maps where the text is, and back again."""

from __future__ import annotations

import contextlib
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from ocrlab.config.schema import Config
from ocrlab.data import target_maps, transforms
from ocrlab.data.dataset import Batch, PageOrder, collate, worker_init
from ocrlab.data.formats.reader import Sample
from ocrlab.debug.instruments.dataloader.tune_workers import MANY_WORKERS
from ocrlab.debug.recorder import rng_state
from ocrlab.evaluation.metrics import iou
from ocrlab.inference import page_inference
from ocrlab.records import Check
from ocrlab.training.sanity.reference_loss import make_check

SHIFT = 0.25  # pixels between text and map, on average over some crops: half a pixel is the usual mistake
LOOKED = 3  # shifts that are tried, both ways, in pixels
PAGES, ROOM = 6, 512  # crops for it, and their side in pixels at least: text that is cut off says nothing
AIM, ENOUGH, NEARLY = 0.7, 0.95, 0.85  # IoU and hmean of the way to perfect maps and back
DEADLINE = 60  # seconds that a worker may take for a batch

Data = Callable[[Sequence[Sample], Config], Dataset[Any]]
Order = Callable[[int, int, int], Any]  # pages, seed, stop


def first_batch(data: Data, samples: Sequence[Sample], config: Config, workers: int = 0) -> Batch:
    """Return the first training batch, loaded as training loads it."""
    order = PageOrder(len(samples), config.seed, config.batch_size)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", MANY_WORKERS)
        loaded: DataLoader[Any] = DataLoader(
            data(samples, config),
            batch_size=config.batch_size,
            sampler=order,
            num_workers=workers,
            collate_fn=collate,
            worker_init_fn=worker_init() if workers else None,
            timeout=DEADLINE if workers else 0,
        )
        return next(iter(loaded))  # type: ignore[no-any-return]


def order(make: Order, count: int, config: Config) -> Check:
    """Judge the order of pages: the same by seed, another with another seed, and every page once in an epoch."""
    stop = 2 * count
    walks = [[tuple(at) for at in make(count, seed, stop)] for seed in (config.seed, config.seed, config.seed + 1)]
    wrong = []
    if walks[0] != walks[1]:
        wrong.append("another order with the same seed")
    if count > 2 and walks[0] == walks[2]:
        wrong.append("the same order with another seed")
    epochs = [sorted(page for epoch, page in walks[0] if epoch == e) for e in (0, 1)]
    if any(pages != list(range(count)) for pages in epochs):
        wrong.append("not every page once in an epoch")
    do = "Draw the order from a generator of its own, seeded with seed and epoch"
    result = "; ".join(wrong) or f"{count} pages, each once in an epoch"
    return make_check("page order", not wrong, result, "a function of the seed", do)


def augmentation(data: Data, samples: Sequence[Sample], config: Config) -> Check:
    """Judge the augmentation: a function of seed, epoch and page alone, and another one in the next epoch."""
    few = range(min(3, len(samples)))
    with random_state(1):
        first = [data(samples, config)[0, i] for i in few]  # type: ignore[index]
    with random_state(2):
        again, later = ([data(samples, config)[epoch, i] for i in few] for epoch in (0, 1))  # type: ignore[index]
    differ = 0
    for a, b in zip(first, again, strict=True):
        pairs = zip((a[0], *a[1].maps), (b[0], *b[1].maps), strict=True)
        differ += not all(np.array_equal(mine, other) for mine, other in pairs)
    still = sum(np.array_equal(a[0], b[0]) for a, b in zip(first, later, strict=True))
    result = f"{differ} of {len(few)} crops differ with the same seed"
    result += f", {still} are the same in the next epoch" if still else ""
    do = "Draw from the generator that is handed over, never from the global ones"
    need = "none differs, and each epoch has its own"
    return make_check("augmentation", not differ and not still, result, need, do, warn=not differ)


def workers(data: Data, samples: Sequence[Sample], config: Config) -> Check:
    """Judge whether two loader workers give the batch that none gives."""
    with random_state(1):
        alone = first_batch(data, samples, config, 0)
    with random_state(2):
        both = first_batch(data, samples, config, 2)
    named = {"images": (alone.images, both.images)}
    kinds = ("shrink map", "shrink mask", "threshold map", "threshold mask")
    named |= {kind: pair for kind, *pair in zip(kinds, alone.maps, both.maps, strict=True)}  # type: ignore[misc]
    wrong = [name for name, (a, b) in named.items() if a.shape != b.shape or not torch.equal(a, b)]
    wrong += ["pages"] if alone.pages != both.pages else []
    equal = f"{len(alone.pages)} crop{'s' * (len(alone.pages) > 1)}, equal bit for bit"
    result = f"{', '.join(wrong)} differ" if wrong else equal
    do = "Draw from a generator seeded by seed, epoch and page: a worker's global one is seeded by its number"
    return make_check("workers 0 and 2", not wrong, result, "the same batch", do)


def alignment(data: Data, samples: Sequence[Sample], config: Config) -> Iterator[Check]:
    """Judge by how many pixels the maps lie beside the text, on crops of pages whose text is painted white.

    The page takes the way of every training page but for its colours. A map is moved by whole pixels against the white,
    and where it fits best is read between pixels from a parabola.
    """
    calm = config.model_copy(deep=True)
    calm.augment.brightness = calm.augment.noise = calm.augment.blur = calm.augment.degrade = 0.0
    calm.crop = max(config.crop, ROOM)
    scores = {"shrink map": np.zeros((2 * LOOKED + 1,) * 2), "threshold map": np.zeros((2 * LOOKED + 1,) * 2)}
    with tempfile.TemporaryDirectory() as folder:
        painted = [paint(sample, Path(folder) / f"{i}.png") for i, sample in enumerate(samples[:PAGES])]
        crops = data(painted, calm)
        for i in range(len(painted)):
            crop, maps, *_ = crops[0, i]  # type: ignore[index]
            every = (crop[..., 1] > 127).astype(np.uint8)
            # Text that reaches the edge of a crop is cut off, and has no middle.
            _, label = cv2.connectedComponents(every, connectivity=8)
            border = np.concatenate((label[0], label[-1], label[:, 0], label[:, -1]))
            white = np.where(np.isin(label, border), 0, every).astype(np.uint8)
            depth = cv2.distanceTransform(white, cv2.DIST_L2, 5)
            low = config.targets.threshold_range[0]
            sobel = [np.abs(cv2.Sobel(white.astype(np.float32), cv2.CV_32F, dx, 1 - dx)) for dx in (1, 0)]
            scores["shrink map"] += fit(np.minimum(depth, 16), maps.shrink_map * (every == white))
            scores["threshold map"] += fit(sobel[0] + sobel[1], np.maximum(maps.threshold_map - low, 0))
    for name, score in scores.items():
        if not score.any():
            yield Check(f"alignment: {name}", "skip", "no text in these crops", "text")
            continue
        row, column = np.unravel_index(int(score.argmax()), score.shape)
        # By how many pixels the map lies to the right of and below where it belongs.
        x, y = peak(score[row], int(column)) - LOOKED, peak(score[:, column], int(row)) - LOOKED
        offset = f"{x:+.2f} px across, {y:+.2f} px down"
        do = "Give image and polygons one warp; OpenCV's pixel centres have whole numbers"
        yield make_check(f"alignment: {name}", max(abs(x), abs(y)) <= SHIFT, offset, f"{SHIFT} px or less", do)


def text(samples: Sequence[Sample], config: Config) -> Iterator[Check]:
    """Yield that no page has a box that counts; pages without text are learned from, though not they alone."""
    if not any((~sample.ignored).any() for sample in samples):
        boxes = sum(len(sample.ignored) for sample in samples)
        result = f"0 boxes that count on {len(samples)} pages" + (f", {boxes} that do not" if boxes else "")
        do = f"Look at the annotations: ocrlab samples check {config.data}"
        yield Check("text to learn", "fail", result, "one", do)


def round_trip(samples: Sequence[Sample], config: Config) -> Check:
    """Judge the way from polygons to perfect maps and back, over some pages: what is lost there, no network finds."""
    name, matches = "round trip of polygons", []
    if not any((~sample.ignored).any() for sample in samples[:8]):
        return Check(name, "skip", "no text that counts on the first pages", "text")
    for sample in samples[:8]:
        warp, (width, height) = transforms.letterbox((sample.width, sample.height), config.evaluate)
        moved = [np.rint(transforms.warp_points(polygon, warp)) for polygon in sample.polygons]
        targets = target_maps.make(moved, sample.ignored, (height, width), **dict(config.targets))
        size = (sample.width, sample.height)
        regions = page_inference.regions(targets.shrink_map, warp, size, config.post, config.targets.shrink_ratio)
        matches.append(iou.match(sample.polygons, sample.ignored, regions.polygons))
    value = iou.summary(matches)[f"hmean@{AIM}"]
    do = "See what is lost, and which settings keep it: ocrlab evaluate --oracle DIR"
    result, need = f"hmean@{AIM} {value:.3f} over {len(matches)} pages", f"{ENOUGH}"
    return make_check(name, value >= ENOUGH, result, need, do, warn=value >= NEARLY)


def paint(sample: Sample, path: Path) -> Sample:
    """Return a page that is black, with its text white; written to `path`, of the same size."""
    page = np.zeros((sample.height, sample.width, 3), np.uint8)
    for polygon in sample.polygons:
        cv2.fillPoly(page, [np.rint(np.asarray(polygon) * 16).astype(np.int32)], (255, 255, 255), shift=4)
    cv2.imwrite(str(path), page)
    return replace(sample, image=path, ignored=np.zeros(len(sample.polygons), bool))


def fit(fixed: NDArray[Any], moving: NDArray[Any]) -> NDArray[np.float64]:
    """Return how well a map fits when it is moved back by -3..3 pixels down (rows) and across (columns)."""
    n, (height, width) = LOOKED, fixed.shape
    inner = np.asarray(fixed[n : height - n, n : width - n], np.float64)
    shifts = range(-n, n + 1)
    moved = (moving[n + dy : height - n + dy, n + dx : width - n + dx] for dy in shifts for dx in shifts)
    return np.array([(inner * part).sum() for part in moved]).reshape(len(shifts), len(shifts))


def peak(values: NDArray[np.float64], at: int) -> float:
    """Return the place of the top of a parabola through the highest value and its neighbours."""
    if not 0 < at < len(values) - 1:
        return float(at)
    left, top, right = values[at - 1 : at + 2]
    bend = left - 2 * top + right
    return at + (0.5 * float((left - right) / bend) if bend else 0.0)


@contextlib.contextmanager
def random_state(seed: int) -> Iterator[None]:
    """Set the global generators to some state for a block: what draws from them differs. They are restored."""
    states = rng_state.take()
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    try:
        yield
    finally:
        rng_state.restore(states)
