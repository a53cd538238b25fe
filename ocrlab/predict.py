"""Find text in images with a trained detector: `Detector.load().detect("page.jpg")`.

Pages go through `train.pages`, the same path that validation takes, so that the two cannot differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from ocrlab import flight, postprocess
from ocrlab.config import Config
from ocrlab.data import formats, images
from ocrlab.data.dataset import Pages, readable
from ocrlab.errors import CheckpointError, DataError
from ocrlab.flight import write_bytes, write_json
from ocrlab.metrics import iou
from ocrlab.model.detector import Detector as Network
from ocrlab.probes import host
from ocrlab.records import Prediction, to_json
from ocrlab.train import checkpoint, pages

FORMATS = ("json", "icdar", "overlay")
GREEN = (60, 190, 60)  # RGB of the polygons in overlays
Tick = Callable[[int, int], None]  # done, total


@dataclass
class Detector:
    """A trained detector with the settings it was measured with; `config.post` and `config.evaluate` may be changed."""

    model: Network
    config: Config
    bf16: bool
    checkpoint: Path | None = None

    @classmethod
    def load(cls, path: Path | str | None = None, *, runs: Path | str = "runs", device: str = "cpu") -> Detector:
        """Read a checkpoint, or the best one of the newest successful run in `runs`; raises CheckpointError."""
        found = newest_checkpoint(Path(runs)) if path is None else Path(path)
        net, config, _ = checkpoint.load_detector(found)
        bf16 = config.trainer.precision == "bf16" and (device != "cpu" or "avx512_bf16" in host.cpu_flags())
        return cls(net.to(device), config, bf16, found)

    def regions(self, image: NDArray[np.uint8]) -> postprocess.Regions:
        """Return polygons (P, 2) and scores (N,) of an image (H, W, 3) RGB uint8, in its own pixels."""
        return pages.detect(
            self.model,
            image,
            post=self.config.post,
            evaluate=self.config.evaluate,
            shrink_ratio=self.config.targets.shrink_ratio,
            bf16=self.bf16,
        )

    def detect(self, image: NDArray[np.uint8] | Path | str, name: str | None = None) -> Prediction:
        """Return the text regions of a file or of an image (H, W, 3) RGB uint8; raises DataError for a bad file."""
        if isinstance(image, Path | str):
            name = name or Path(image).name
            image = images.read_image(image, exif=self.config.exif)
        found = self.regions(image)
        height, width = image.shape[:2]
        return Prediction(name or "", width, height, found.to_detections())


def newest_checkpoint(runs: Path) -> Path:
    """Return the best checkpoint of the newest successful run in `runs`; raises CheckpointError naming the option."""
    run = flight.newest(runs)
    best = sorted((run / "checkpoints").glob("best-*.ckpt")) if run else []
    if not best:
        raise CheckpointError(
            "There is no trained detector yet",
            got=f"no successful run in {runs}",
            need="a checkpoint",
            do="Name one with --checkpoint CKPT, or train one with: ocrlab train",
        )
    return best[-1]


def evaluate(
    detector: Detector, data: str, split: str = "val", *, exif: bool = False, tick: Tick | None = None
) -> dict[str, float]:
    """Return hmean, precision and recall at IoU 0.5, 0.7, 0.8 over a split, with pages seen and skipped and seconds."""
    index = formats.load(data, split, exif=exif)
    start = time.perf_counter()
    plain = detector.config.model_copy(update={"exif": exif})
    samples, unreadable = readable(index.samples, plain)
    whole = Pages(samples, plain)
    matches = []
    for i in range(len(whole)):
        matches.append(pages.judge(detector.model, whole[i], plain, bf16=detector.bf16))
        if tick:
            tick(i + 1, len(whole))
    skipped = float(len(index.problems) + len(unreadable))
    return {**iou.summary(matches), "skipped": skipped, "seconds": time.perf_counter() - start}


def collect(paths: Sequence[Path]) -> list[Path]:
    """Return the image files that `paths` (files and folders) name, folders in order of name; raises DataError."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(p for p in path.rglob("*") if p.suffix.lower() in images.SUFFIXES and p.is_file())
        elif path.exists():
            found.append(path)
        else:
            raise DataError("There is no such file or folder", got=str(path), need="images or folders of images")
    if not found:
        raise DataError(
            "No image was found", got=", ".join(map(str, paths)), need=f"files {' '.join(sorted(images.SUFFIXES))}"
        )
    return found


def predict_files(
    detector: Detector,
    paths: Sequence[Path],
    out: Path,
    formats_wanted: Sequence[str] = ("json",),
    *,
    tick: Tick | None = None,
    complain: Callable[[str], None] = lambda _text: None,
) -> Iterator[Prediction]:
    """Detect text in files and folders, write NAME.json, NAME.txt (ICDAR) or NAME.overlay.jpg into `out`, and yield.

    A page that cannot be read is told to `complain` and skipped. A file that is already in `out` is never overwritten.
    """
    files = collect([Path(p) for p in paths])
    out.mkdir(parents=True, exist_ok=True)
    for i, file in enumerate(files):
        try:
            image = images.read_image(file, exif=detector.config.exif)
        except DataError as error:
            complain(str(error))
            continue
        found = detector.detect(image, name=file.name)
        write(found, image, free_stem(out, file.stem, formats_wanted), formats_wanted)
        if tick:
            tick(i + 1, len(files))
        yield found


def free_stem(out: Path, stem: str, wanted: Sequence[str]) -> Path:
    """Return `out/stem`, or `out/stem-2`, -3 … where one of its files is already there."""
    endings = {"json": ".json", "icdar": ".txt", "overlay": ".overlay.jpg"}
    number = 1
    while True:
        base = out / (stem if number == 1 else f"{stem}-{number}")
        if not any(Path(f"{base}{endings[w]}").exists() for w in wanted):
            return base
        number += 1


def write(found: Prediction, image: NDArray[np.uint8], base: Path, wanted: Sequence[str]) -> None:
    """Write one prediction in each of the formats that are wanted, as `base` with the ending of the format."""
    polygons = [np.asarray(d.polygon, dtype=np.float32) for d in found.detections]
    if "json" in wanted:
        write_json(Path(f"{base}.json"), to_json(found))
    if "icdar" in wanted:
        formats.write_icdar(Path(f"{base}.txt"), polygons, [""] * len(polygons))
    if "overlay" in wanted:
        _, data = cv2.imencode(".jpg", overlay(image, polygons)[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 90])
        write_bytes(Path(f"{base}.overlay.jpg"), data.tobytes())


def overlay(image: NDArray[np.uint8], polygons: Sequence[NDArray[np.float32]]) -> NDArray[np.uint8]:
    """Return a copy of an image (H, W, 3) RGB with the polygons drawn on it."""
    drawn = image.copy()
    thickness = max(1, round(max(image.shape[:2]) / 800))
    points = [np.rint(p).astype(np.int32) for p in polygons]
    return cv2.polylines(drawn, points, isClosed=True, color=GREEN, thickness=thickness, lineType=cv2.LINE_AA)


def threads(count: int | None = None) -> None:
    """Use `count` threads, or one a usable core."""
    torch.set_num_threads(count or host.cores())
