"""A trained detector, ready to use, and which one it is when nobody names one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from ocrlab import run_folder
from ocrlab.config.schema import Config
from ocrlab.data import image_io
from ocrlab.data.annotations import Problem
from ocrlab.errors import CheckpointError, ConfigError, ShapeError
from ocrlab.evaluation import postprocess
from ocrlab.hardware import host
from ocrlab.inference import checkpoint, page_inference, pretrained
from ocrlab.inference.page_stream import Source, check_image, stream_pages
from ocrlab.model.dbnet import Detector as Network
from ocrlab.records import Prediction

WEAK = 0.5  # hmean@0.5 below which a run's detector is hardly the one that somebody wants to use


@dataclass
class Detector:
    """A trained detector with the settings it was measured with; `config.post` and `config.evaluate` may be changed."""

    model: Network
    config: Config
    bf16: bool
    checkpoint: Path | None = None
    origin: str = ""  # which one it is, in words

    @classmethod
    def load(cls, path: Path | str | None = None, *, runs: Path | str = "runs", device: str = "cpu") -> Detector:
        """Load a checkpoint; `receipts` is the included detector, unless a file has that name.

        Without a path, load the best checkpoint of the newest successful run in `runs`, or the included detector if
        there is no such run. Raises CheckpointError, and ConfigError for a missing device.
        """
        runs = Path(runs)
        if path is not None and (str(path) != pretrained.NAME or Path(path).is_file()):
            file, origin = Path(path), str(path)
        elif path is not None:
            file, origin = pretrained.find(), f"the included detector {pretrained.NAME}"
        else:
            try:
                file = newest_checkpoint(runs)
                origin = f"{file}, the newest successful run"
            except CheckpointError:
                file = pretrained.find()
                origin = f"the included detector {pretrained.NAME}, since {runs} has no successful run"
        net, config, card = checkpoint.load_detector(file)
        hmean = (card.get("metrics") or {}).get("hmean@0.5")
        if origin.endswith("newest successful run") and isinstance(hmean, float) and hmean < WEAK:
            origin += f", which reached only hmean@0.5 {hmean:.2f}"
            origin += f" (`{pretrained.NAME}` as checkpoint is the included detector)"
        try:
            net = net.to(device)
        except (RuntimeError, AssertionError) as error:  # torch's, of which some list thirty kinds of device
            got = f"device={device!r}: {str(error).partition(chr(10))[0][:100]}"
            need = "cpu, or cuda where torch sees a GPU"
            raise ConfigError("The detector cannot be put onto this device", got=got, need=need) from error
        bf16 = config.trainer.precision == "bf16" and (device != "cpu" or "avx512_bf16" in host.cpu_flags())
        return cls(net, config, bf16, file, origin)

    def regions(self, image: NDArray[np.uint8]) -> postprocess.Regions:
        """Return polygons (P, 2) and scores (N,) of an image (H, W, 3) RGB uint8, in its own pixels."""
        return page_inference.detect(
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
            image = image_io.read_image(image, exif=self.config.exif)
        image = check_image(image)
        regions = self.regions(image)
        height, width = image.shape[:2]
        return Prediction(name or "", width, height, regions.to_detections())

    def stream(
        self, pages: Iterable[Source], *, ahead: int | None = None, batch: int | None = None
    ) -> Iterator[Prediction | Problem]:
        """Yield the predictions for files or images (H, W, 3) RGB uint8, in their order; a bad page yields a Problem.

        Reading and post-processing run in parallel with the network. At most `ahead` pages are in memory. Pages of the
        same canvas size form batches of at most `batch`. Raises ShapeError for a single page instead of a list.
        """
        got = repr(pages) if isinstance(pages, str | Path) else ""
        if isinstance(pages, np.ndarray) and pages.ndim in (2, 3):
            got = f"an image {pages.shape}"
        if got:  # the letters of its name, or its rows, would be taken for pages
            do = "Put it into a list, or use detect"
            raise ShapeError("This is one page", got=got, need="a list of pages", do=do)
        return stream_pages(self, pages, lambda page, regions: page.prediction(regions), ahead=ahead, batch=batch)


def newest_checkpoint(runs: Path) -> Path:
    """Return the best checkpoint of the newest successful run in `runs`; raises CheckpointError naming the option."""
    for folder, record in reversed(run_folder.list_runs(runs)):
        best = sorted((folder / "checkpoints").glob("best-*.ckpt"))
        if best and record.status == "success":  # runs of other programs end well too, and leave no checkpoint
            return best[-1]
    raise CheckpointError(
        "There is no trained detector yet",
        got=f"no successful run in {runs}",
        need="a checkpoint",
        do="Name one with --checkpoint CKPT, or train one with: ocrlab train",
    )


def threads(count: int | None = None) -> None:
    """Use `count` threads for the network, or as OMP_NUM_THREADS asks, or one for each usable core; OpenCV uses one."""
    torch.set_num_threads(count or host.wanted_threads() or host.cores())
    cv2.setNumThreads(1)
