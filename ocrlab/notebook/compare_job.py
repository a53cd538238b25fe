"""What the comparing notebook does in a child: every run's detector on the same pages; or, first, two short trainings.

Plain values and arrays go back: reading them needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ocrlab.config import schema as configs
from ocrlab.config.fields import flat
from ocrlab.config.schema import Config
from ocrlab.errors import DataError, RunError
from ocrlab.evaluation.metrics import page_scores as metric
from ocrlab.reports.run_history import run_list

if TYPE_CHECKING:
    from ocrlab.data.shards.tar_member import Member

Progress = Callable[[dict[str, Any]], None]
Polygons = list[NDArray[np.float32]]
SETTLED = ("trainer.precision", "runtime.threads", "runtime.workers", "runtime.channels_last")
SIDE = 960  # pixels of a page for those; the samples' own size
RATES = (1e-2, 1e-4)  # learning rates of the two short trainings; the first one spoils what was learned


@dataclass(frozen=True)
class PageResult:
    """What one run's detector finds on one page, and how that is judged."""

    polygons: Polygons
    scores: metric.PageScores

    @property
    def hmean(self) -> float:
        """hmean@0.5 of the page."""
        return self.scores.iou.hmean(0.5)


@dataclass(frozen=True)
class ComparedPage:
    """One page: its name, its image, its ground truth, and what each run finds on it."""

    name: str
    image: Path | Member
    polygons: Polygons
    ignored: NDArray[np.bool_]
    results: list[PageResult]


@dataclass(frozen=True)
class Comparison:
    """Runs and the pages that all of them were judged on; `notes` are sentences about what was not as asked."""

    runs: list[Path]
    data: str
    split: str
    exif: bool
    pages: list[ComparedPage]
    notes: list[str] = field(default_factory=list)


def compare(config: Config, places: Sequence[str], data: str, pages: int, progress: Progress) -> Comparison:
    """Return runs on the same pages: those of `places`, or without any two short trainings made now.

    `data` is empty for the pages that the first run was measured on; of more than `pages` some are taken from all over.
    Pages that cannot be decoded are left out, with a note. Raises RunError for a run without a checkpoint, DataError.
    """
    from ocrlab.data import dataset
    from ocrlab.data.formats import reader
    from ocrlab.inference import Detector
    from ocrlab.training.prediction_review import spread_samples

    folders = chosen(places) if places else trained(config, progress)
    checkpoints = [best(folder) for folder in folders]
    settings = [configs.load(folder / "config.yaml") for folder in folders]
    about = settings[0]
    source = data or about.data
    notes = _notes(folders, settings, data)
    chosen_pages = spread_samples(reader.load(source, about.val_split, exif=about.exif).samples, pages)
    samples, unreadable = dataset.readable_pages(chosen_pages, about)
    notes += [f"Left out: {problem}" for problem in unreadable]
    results: list[list[PageResult]] = []
    total = len(folders) * len(samples)
    for number, path in enumerate(checkpoints):
        detector = Detector.load(path)
        results.append([])
        for at, sample in enumerate(samples):
            results[-1].append(_look(detector, sample, about.exif))
            progress({"kind": "measure", "unit": "page", "step": number * len(samples) + at + 1, "total": total})
    progress({"kind": "end", "unit": "page", "step": total, "total": total})
    compared = [
        ComparedPage(sample.name, sample.image, _plain(sample.polygons), sample.ignored, list(page_results))
        for sample, page_results in zip(samples, zip(*results, strict=True), strict=True)
    ]
    return Comparison(folders, source, about.val_split, about.exif, compared, notes)


def chosen(places: Sequence[str]) -> list[Path]:
    """Return the run folders that are meant; of one folder with runs the two newest that ended well, the older first.

    Raises RunError where there are fewer than two.
    """
    paths = [str(Path(place).expanduser().absolute()) for place in places]
    runs = run_list.list_runs(paths)
    if len(paths) == 1:
        done = [run for run in runs if run.status == "success" and any(Path(run.path).glob("checkpoints/best-*.ckpt"))]
        names = [run.path for run in done[:2][::-1]]
    else:
        listed = {run.path for run in runs}
        names = [path for path in paths if path in listed]
    if len(names) < 2:
        got, need = f"{len(names)} of {', '.join(places)}", "two run folders, or a folder with two that ended well"
        raise RunError("There are not two runs to compare", got=got, need=need, do="List them with: ocrlab runs DIR")
    return [Path(name) for name in names]


def best(folder: Path) -> Path:
    """Return the best checkpoint of a run; raises RunError."""
    newest = max((folder / "checkpoints").glob("best-*.ckpt"), key=lambda path: path.stat().st_mtime, default=None)
    if newest is None:
        need, do = "a run that came to its first validation", f"See why with: ocrlab diagnose {folder}"
        raise RunError(f"{folder} has no checkpoint that could be compared", need=need, do=do)
    return newest


def trained(config: Config, progress: Progress) -> list[Path]:
    """Return two short trainings on top of the included detector, with another learning rate each."""
    from ocrlab.training import loop

    total = 2 * config.trainer.max_steps
    folders: list[Path] = []
    for number, rate in enumerate(RATES):
        ours = {"weights": "receipts", "optim.lr": rate, "optim.ema": 0, "optim.warmup_steps": 0, "recorder.on": False}
        ours |= {"name": f"rate-{rate:g}", "trainer.val_pages": 4, "trainer.val_every": 2, "trainer.log_every": 1}
        ours |= {"evaluate.long_side": min(SIDE, config.evaluate.long_side)}
        if folders:  # what the first one has measured of this machine
            before = flat(configs.load(folders[0] / "config.yaml"))
            ours |= {key: before[key] for key in SETTLED}

        def report(event: dict[str, Any], done: int = number * config.trainer.max_steps) -> None:
            if event["kind"] in ("train", "validate"):
                progress({"kind": "train", "unit": "step", "step": done + int(event["step"]), "total": total})

        folders.append(loop.fit(configs.apply(config, ours), progress=report).folder)
    return folders


def _look(detector: Any, sample: Any, exif: bool) -> PageResult:
    from ocrlab.data.image_io import read_image

    polygons = _plain(detector.regions(read_image(sample.image, exif=exif)).polygons)
    return PageResult(polygons, metric.judge(sample.polygons, sample.ignored, sample.texts, polygons))


def _plain(polygons: Sequence[Any]) -> Polygons:
    return [np.asarray(polygon, dtype=np.float32) for polygon in polygons]


def _notes(folders: Sequence[Path], settings: Sequence[Config], data: str) -> list[str]:
    """Return the caveats of a comparison: runs that learned from other pages, or were measured on others."""
    notes, name = [], folders[0].name
    for folder, config in zip(folders[1:], settings[1:], strict=True):
        if (config.data, config.train_split) != (settings[0].data, settings[0].train_split):
            notes.append(f"{folder.name} learned from other pages than {name}")
        if not data and (config.data, config.val_split) != (settings[0].data, settings[0].val_split):
            notes.append(f"{folder.name} was measured on other pages; here both are judged on those of {name}")
    if data and not Path(data).is_dir():
        raise DataError(f"There is no folder {data}", need="a data folder", missing=True)
    return notes
