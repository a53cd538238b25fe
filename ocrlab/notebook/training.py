"""The sections of the training notebook: data with targets, the network, curves, pages, and the sweep.

`training.prediction_review` gives the arrays, `reports` draws them; both meet only here. What is slow to import is
imported where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING

from ocrlab.config.schema import Config
from ocrlab.reports import plots, progress_view
from ocrlab.reports.html import page_images, tables
from ocrlab.reports.view import View

if TYPE_CHECKING:
    from ocrlab.training.loop import RunResult
    from ocrlab.training.prediction_review import Review, ReviewedPage, Unclip

THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7)
UNCLIPS: tuple[Unclip, ...] = ("exact", 1.25, 1.5, 2.0)
SWEPT = 16  # pages


def pages(config: Config, split: str | None = None, count: int = 3) -> View:
    """Return some pages of a split (default: the one that is learned from) with their polygons; raises DataError."""
    from ocrlab.data import image_io
    from ocrlab.data.formats import reader
    from ocrlab.training import prediction_review as reviews

    split = split or config.train_split
    index = reader.load(config.data, split, exif=config.exif)
    pictures, every = [], []
    for sample in reviews.spread_samples(index.samples, count):
        image = image_io.read_image(sample.image, exif=config.exif)
        text = f"{len(sample.polygons)} boxes"
        text += f", {int(sample.ignored.sum())} of them ignored" if sample.ignored.any() else ""
        layers = page_images.truth_layers(sample.polygons, sample.ignored)
        every.append(layers)
        caption = f"<b>{escape(sample.name)}</b> · {sample.width} × {sample.height} px · {text}"
        pictures.append(page_images.picture(image, f"page {sample.name} with {text}", layers, caption))
    boxes = sum(len(sample.polygons) for sample in index.samples)
    left_out = sum(count for reason, count in index.dropped.items() if reason != "none")
    finding = f"{len(index.samples)} pages in split {split}, {boxes / len(index.samples):.0f} boxes a page on average"
    note = f"{left_out} boxes and {index.left_out} pages could not be used." if left_out or index.left_out else ""
    return page_images.row(finding, pictures, page_images.legend(every), note)


def targets(config: Config) -> View:
    """Return one training crop beside the maps that the network learns from it; raises DataError."""
    from ocrlab.data.formats import reader
    from ocrlab.training import prediction_review as reviews

    samples = reader.load(config.data, config.train_split, exif=config.exif).samples
    sample, crop, maps = reviews.example_crop(config, samples)
    share = 100 * float(maps.shrink_map.mean())
    shown = {"Shrink map": maps.shrink_map, "Threshold map": maps.threshold_map}
    pictures = page_images.target_pictures(sample.name, crop, shown, *config.targets.threshold_range, width=300)
    finding = f"Text shrunk by {config.targets.shrink_ratio:g} covers {share:.1f} % of this crop of {config.crop} px"
    note = "The probability map learns the shrink map, which separates neighbouring lines; the threshold map, borders."
    return page_images.row(finding, pictures, note=note)


def model(config: Config) -> View:
    """Return the table of the network's stages with output sizes and parameters."""
    from ocrlab.training import prediction_review as reviews

    stages = reviews.stages(config)
    rows = [(s.name, " × ".join(map(str, s.shape)) if s.shape else "", s.parameters) for s in stages]
    total = sum(stage.parameters for stage in stages)
    finding = f"{config.encoder} + {config.decoder}: {total / 1e6:.1f} million parameters"
    head = ("stage", f"output for a crop of {config.crop} px (C × H × W)", "parameters")
    return tables.table(head, [*rows, ("all", "", total)], finding, total=True)


def curves(run: RunResult, limit: float | None = None) -> View:
    """Return loss and hmean over the steps of a run."""
    return plots.curves(plots.read_metrics(run.folder / "metrics.csv"), limit)


def scores(run: RunResult) -> View:
    """Return the table of final figures."""
    figures = ("hmean", "precision", "recall")
    rows = [[f"above {at}", *(run.metrics[f"{figure}@{at}"] for figure in figures)] for at in ("0.5", "0.7", "0.8")]
    finding = f"hmean {run.metrics['hmean@0.5']:.3f} at IoU 0.5 over {run.metrics['pages']:.0f} pages"
    note = "A detection is right if it overlaps one text box by more than the IoU (ICDAR 2015 protocol)."
    return tables.table(("IoU", *figures), rows, finding, note)


def look(run: RunResult, progress: progress_view.Live) -> Review:
    """Return every validation page as the trained detector sees it, but those that training had to leave out.

    Raises CheckpointError, DataError.
    """
    from ocrlab.config import schema as configs
    from ocrlab.data import dataset
    from ocrlab.data.formats import reader
    from ocrlab.inference import Detector
    from ocrlab.training import prediction_review as reviews

    config = configs.load(run.folder / "config.yaml")
    detector = Detector.load(run.checkpoint, device=config.trainer.accelerator)
    samples, _ = dataset.readable_pages(reader.load(config.data, config.val_split, exif=config.exif).samples, config)
    tick = _ticks(progress)
    return reviews.review_pages(detector.model, detector.config, samples, bf16=detector.bf16, keep=SWEPT, tick=tick)


def extremes(review: Review, count: int = 2) -> tuple[View, View]:
    """Return the worst and the best pages with ground truth and detections; raises DataError."""
    from ocrlab.training import prediction_review as reviews

    best, worst = reviews.best_and_worst(review, count)
    return _compared("Worst pages", worst, review.config), _compared("Best pages", best, review.config)


def sweep(review: Review, progress: progress_view.Live) -> View:
    """Return hmean over binarisation thresholds and unclip settings, read from the same probability maps."""
    from ocrlab.training import prediction_review as reviews

    count = sum(page.heat is not None for page in review.pages)
    scores = reviews.sweep(review, THRESHOLDS, UNCLIPS, _ticks(progress))
    used = (review.config.post.threshold, review.config.post.unclip)
    best = max(scores, key=lambda key: (scores[key]["hmean@0.5"], key == used))
    rows = []
    for threshold in dict.fromkeys(threshold for threshold, _ in scores):
        keys = [key for key in scores if key[0] == threshold]
        marks = ["★ " * (key == best) + "● " * (key == used) for key in keys]
        cells = [f"{mark}{scores[key]['hmean@0.5']:.3f}" for mark, key in zip(marks, keys, strict=True)]
        rows.append([f"threshold {threshold:g}", *cells])
    finding = f"Best: threshold {best[0]:g} with unclip {best[1]}, hmean@0.5 {scores[best]['hmean@0.5']:.3f}"
    finding += "" if best == used else f" (the settings in use give {scores[used]['hmean@0.5']:.3f})"
    head = ["", *dict.fromkeys(f"unclip {unclip}" for _, unclip in scores)]
    note = f"★ best, ● in use. {count} validation pages; a setting chosen on them flatters itself a little."
    return tables.table(head, rows, finding, note)


def _compared(title: str, pages: Sequence[ReviewedPage], config: Config) -> View:
    from ocrlab.data import image_io

    pictures, every = [], []
    for page in pages:
        sample, match = page.sample, page.match
        image = image_io.read_image(sample.image, exif=config.exif)
        pairs = match.pairs[0.5]
        detected = (page.regions.polygons, pairs, match.detection_counts)
        layers = page_images.match_layers(sample.polygons, sample.ignored, *detected)
        missed, wrong = match.cared_truth - len(pairs), match.cared_detections - len(pairs)
        every.append(layers)
        text = f"hmean {page.hmean:.2f} · {len(pairs)} found, {missed} missed, {wrong} wrong"
        caption = f"<b>{escape(sample.name)}</b> · {text}"
        pictures.append(page_images.picture(image, f"page {sample.name}: {text}", layers, caption, width=430))
    scores = ", ".join(f"{page.hmean:.2f}" for page in pages) or "there are no others"
    return page_images.row(f"{title}: hmean@0.5 {scores}", pictures, page_images.legend(every))


def _ticks(progress: progress_view.Live) -> Callable[[int, int], None]:
    def tick(done: int, total: int) -> None:
        progress({"kind": "measure", "step": done, "total": total})
        if done == total:
            progress({"kind": "end", "step": done, "total": total})

    return tick
