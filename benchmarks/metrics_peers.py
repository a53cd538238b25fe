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

Told = tuple[Any, ...]  # what a side says of one page
Side = Callable[[Sequence["Asked"]], list[Told]]


class Asked(NamedTuple):
    """One page: ground truth quads, which are ignored, their texts, and the quads that were found."""

    truth: list[Any]
    ignored: list[bool]
    texts: list[str]
    detections: list[Any]


def iou_reference(checkout: Path) -> Side:
    """Return the evaluator of a checkout of MhLiao/DB: the matches of every page at IoU 0.5."""
    evaluator = _module("official_iou", checkout / "concern/icdar2015_eval/detection/iou.py").DetectionIoUEvaluator()

    def run(pages: Sequence[Asked]) -> list[Told]:
        told = [
            evaluator.evaluate_image(
                [{"points": points, "ignore": skip} for points, skip in zip(one.truth, one.ignored, strict=True)],
                [{"points": points} for points in one.detections],
            )
            for one in pages
        ]
        return [tuple(sorted((pair["gt"], pair["det"]) for pair in one["pairs"])) for one in told]

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

    def run(pages: Sequence[Asked]) -> list[Told]:
        told = []
        for one in pages:
            boxes = list(zip(one.truth, one.texts, one.ignored, strict=True))
            truth = [quad(points.ravel().tolist(), transcription=text, is_dc=skip) for points, text, skip in boxes]
            stats = evaluation(settings, truth, [quad(points.ravel().tolist()) for points in one.detections]).stats
            d = stats.det
            there, taken = (
                (d.num_char_gt, d.num_char_tp_recall, int(d.gran_score_recall)),
                d.num_char_det - d.num_char_fp,
            )
            told.append((*there, taken, d.num_char_tp_precision, int(d.gran_score_precision), d.num_char_fp))
        return told

    return run


def sroie_reference(folder: Path) -> Side:
    """Return the competition's DetEval: recall and precision of every page; it reads zip files, which is timed too."""
    sys.path.insert(0, str(folder))
    script = _module("sroie_script", folder / "script.py")

    def run(pages: Sequence[Asked]) -> list[Told]:
        with tempfile.TemporaryDirectory() as place:
            truth, found = Path(place, "truth.zip"), Path(place, "found.zip")
            with zipfile.ZipFile(truth, "w") as there, zipfile.ZipFile(found, "w") as told:
                for i, one in enumerate(pages):
                    ends = [",###" if skip else ",text" for skip in one.ignored]
                    there.writestr(f"{i:04d}.txt", _lines(one.truth, ends))
                    told.writestr(f"{i:04d}.txt", _lines(one.detections, [""] * len(one.detections)))
            samples = script.evaluate_method(str(truth), str(found), script.default_evaluation_params())["per_sample"]
        judged = [samples[f"{i:04d}"] for i in range(len(pages))]
        return [(round(one["recall"], 9), round(one["precision"], 9)) for one in judged]

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
