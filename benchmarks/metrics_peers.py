"""The published evaluators as sides of `metrics.py`: loaded from checkouts outside this tree, none of it is copied."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
import zipfile
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

PageResult = tuple[Any, ...]  # what a side says of one page
Side = Callable[[Sequence["Asked"]], list[PageResult]]


class Asked(NamedTuple):
    """One page: ground truth quads, which are ignored, their texts, and the quads that were found."""

    truth: list[Any]
    ignored: list[bool]
    texts: list[str]
    detections: list[Any]


def iou_reference(checkout: Path) -> Side:
    """Return the evaluator of a checkout of MhLiao/DB: the matches of every page at IoU 0.5."""
    evaluator = _module("official_iou", checkout / "concern/icdar2015_eval/detection/iou.py").DetectionIoUEvaluator()

    def run(pages: Sequence[Asked]) -> list[PageResult]:
        results = [
            evaluator.evaluate_image(
                [{"points": points, "ignore": skip} for points, skip in zip(page.truth, page.ignored, strict=True)],
                [{"points": points} for points in page.detections],
            )
            for page in pages
        ]
        return [tuple(sorted((pair["gt"], pair["det"]) for pair in page["pairs"])) for page in results]

    return run


def cleval_reference(checkout: Path) -> Side:
    """Return CLEval of a checkout of clovaai/CLEval: seven sums of every page, detection only, its default settings."""
    if not (checkout / "cleval" / "eval_functions.py").is_file():
        raise FileNotFoundError("no checkout of clovaai/CLEval, it has no cleval/eval_functions.py")
    sys.path.insert(0, str(checkout))
    quad = importlib.import_module("cleval.box_types").QUAD
    evaluation = importlib.import_module("cleval.eval_functions").evaluation
    settings = Namespace(
        E2E=False,
        ORIENTATION=False,
        DUMP_SAMPLE_RESULT=False,
        CASE_SENSITIVE=True,
        RECALL_GRANULARITY_PENALTY_WEIGHT=1.0,
        PRECISION_GRANULARITY_PENALTY_WEIGHT=1.0,
        VERTICAL_ASPECT_RATIO_THRESH=0.5,
        AREA_PRECISION_CONSTRAINT=0.3,
    )

    def run(pages: Sequence[Asked]) -> list[PageResult]:
        results = []
        for page in pages:
            boxes = list(zip(page.truth, page.texts, page.ignored, strict=True))
            truth = [quad(points.ravel().tolist(), transcription=text, is_dc=skip) for points, text, skip in boxes]
            stats = evaluation(settings, truth, [quad(points.ravel().tolist()) for points in page.detections]).stats
            d = stats.det
            there, taken = (
                (d.num_char_gt, d.num_char_tp_recall, int(d.gran_score_recall)),
                d.num_char_det - d.num_char_fp,
            )
            results.append((*there, taken, d.num_char_tp_precision, int(d.gran_score_precision), d.num_char_fp))
        return results

    return run


def sroie_reference(folder: Path) -> Side:
    """Return the competition's DetEval: recall and precision of every page; it reads zip files, which is timed too."""
    sys.path.insert(0, str(folder))
    script = _module("sroie_script", folder / "script.py")

    def run(pages: Sequence[Asked]) -> list[PageResult]:
        with tempfile.TemporaryDirectory() as place:
            truth, detections = Path(place, "truth.zip"), Path(place, "found.zip")
            with zipfile.ZipFile(truth, "w") as truth_zip, zipfile.ZipFile(detections, "w") as detections_zip:
                for i, page in enumerate(pages):
                    ends = [",###" if skip else ",text" for skip in page.ignored]
                    truth_zip.writestr(f"{i:04d}.txt", _lines(page.truth, ends))
                    detections_zip.writestr(f"{i:04d}.txt", _lines(page.detections, [""] * len(page.detections)))
            samples = script.evaluate_method(str(truth), str(detections), script.default_evaluation_params())[
                "per_sample"
            ]
        judged = [samples[f"{i:04d}"] for i in range(len(pages))]
        return [(round(page["recall"], 9), round(page["precision"], 9)) for page in judged]

    return run


def upright(quads: Sequence[Any]) -> list[Any]:
    """Return bounding boxes in whole pixels, as quads (4, 2)."""
    corners = [np.round([quad.min(axis=0), quad.max(axis=0)]) for quad in quads]
    return [both[[0, 1, 1, 0], :1].repeat(2, axis=1) * [1, 0] + both[[0, 0, 1, 1], 1:] * [0, 1] for both in corners]


def _lines(quads: Sequence[Any], ends: Sequence[str]) -> str:
    rows = (quad.astype(int).ravel().tolist() for quad in upright(quads))
    return "\n".join(",".join(map(str, row)) + end for row, end in zip(rows, ends, strict=True))


def _module(name: str, file: Path) -> Any:
    """Return a module that is a file; raises FileNotFoundError if it is not there."""
    if not file.is_file():
        raise FileNotFoundError(f"there is no {file.name}")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, "a file that ends with .py has a loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
