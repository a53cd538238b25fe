"""Predictions of any detector, read back to be scored against annotated pages.

    FOLDER of NAME.txt, res_NAME.txt or gt_NAME.txt    ICDAR text, one file a page, as competitions take it in
    FOLDER of NAME.json, or one FILE.json              predictions as `ocrlab predict` writes them
    FILE.jsonl                                         the same, one page a line

NAME is that of the image, without its ending. What an ICDAR line has after its points is left alone. Where a folder has
both for a page, JSON is taken: it has the size of the page. A page that could not be predicted (`error` in its JSON) is
left out, as one that cannot be read is.
"""

from __future__ import annotations

import difflib
import json
import time
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ocrlab.data.annotations import read_text
from ocrlab.data.formats.icdar import read_icdar
from ocrlab.data.formats.reader import Index
from ocrlab.errors import DataError
from ocrlab.evaluation.metrics.page_scores import DatasetScores, PageScores, judge
from ocrlab.records import from_json

PREFIXES = ("res_", "gt_")  # as the Robust Reading Competition names them
NEED = '{"image": NAME, "detections": [{"polygon": [[x, y], ...]}]}'


@dataclass(frozen=True)
class PagePrediction:
    """What was found on one page: polygons, however broken."""

    file: Path
    polygons: Sequence[Any]
    size: tuple[int, int] | None  # width and height of the image in pixels, where the file says
    failed: bool = False  # the page could not be read when it was predicted


def score(index: Index, predictions: dict[str, PagePrediction]) -> DatasetScores:
    """Judge predictions by name against the pages of a split.

    Raises DataError if a page has no prediction, a prediction no page, or another image size than its page.
    """
    start = time.perf_counter()
    samples = {_nfc(sample.name): sample for sample in index.samples}
    ends = Counter(PurePosixPath(name).name for name in samples)
    full = {end: name for name in samples if ends[end := PurePosixPath(name).name] == 1}  # a name without its folders
    by_page: dict[str, PagePrediction] = {}
    for name, page in predictions.items():
        by_page[name if name in samples else full.get(name) or full.get(PurePosixPath(name).name, name)] = page
    left_out = {_nfc(problem.file.stem) for problem in index.problems if problem.file is not None}
    unknown = sorted(by_page.keys() - samples.keys() - left_out)
    if unknown:
        near = difflib.get_close_matches(unknown[0], samples, n=1)
        do = f"The nearest page is {near[0]}" if near else f"The pages are named like {next(iter(samples))}"
        raise DataError("These predictions belong to no page of the split", got=_few(unknown), do=do)
    missing = [name for name in samples if name not in by_page]
    if missing:
        do = "A page on which nothing was found needs a prediction, too, without detections"
        raise DataError("These pages have no prediction", got=_few(missing), need="one for each page", do=do)
    judged: dict[str, PageScores] = {}
    for name, sample in samples.items():
        page = by_page[name]
        if page.failed:
            continue
        size = (sample.width, sample.height)
        if page.size not in (None, size):
            got, need = (f"{width} x {height} pixels" for width, height in (page.size or size, size))
            raise DataError(f"{page.file} is of another image than {sample.image}", got=got, need=need)
        judged[sample.name] = judge(sample.polygons, sample.ignored, sample.texts, page.polygons)
    if not judged:
        raise DataError("No page was predicted", got="an error for each page", need="one page with detections or none")
    return DatasetScores(judged, index.left_out + len(samples) - len(judged), time.perf_counter() - start)


def read(path: Path) -> dict[str, PagePrediction]:
    """Return the predictions in a folder or a file by page; raises DataError naming a file without predictions."""
    path = path.expanduser()
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and file.name[0] != ".")
        texts, jsons = ([file for file in files if file.suffix.lower() == ending] for ending in (".txt", ".json"))
        alone = {file.stem for file in texts} - {file.stem for file in jsons}
        if not (texts or jsons) or (jsons and alone):
            got = f"{len(texts)} .txt and {len(jsons)} .json" + (f", none for {_few(sorted(alone))}" if alone else "")
            need = "a .txt for each page, or a .json for each page"
            raise DataError(f"{path} is not a folder of predictions", got=got, need=need)
        pages = [_prediction(read_text(file), file, str(file)) for file in jsons] or [_icdar(file) for file in texts]
    elif not path.is_file():
        need = "a folder of .txt or .json, or a .jsonl"
        raise DataError(f"There are no predictions at {path}", need=need, missing=True)
    elif path.suffix.lower() == ".jsonl":
        lines = enumerate(read_text(path).split("\n"), 1)
        pages = [_prediction(line, path, f"{path}:{number}") for number, line in lines if line.strip()]
    elif path.suffix.lower() == ".json":
        pages = [_prediction(read_text(path), path, str(path))]
    else:
        raise DataError(f"{path} is not a prediction", need="a .jsonl, a .json, or a folder of .txt or .json")
    predictions: dict[str, PagePrediction] = {}
    for name, page in pages:
        if _nfc(name) in predictions:
            raise DataError(f"Page {name!r} is predicted twice", got=str(page.file), need="one prediction a page")
        predictions[_nfc(name)] = page
    return predictions


def _icdar(file: Path) -> tuple[str, PagePrediction]:
    name = next((file.stem.removeprefix(prefix) for prefix in PREFIXES if file.stem.startswith(prefix)), file.stem)
    return name, PagePrediction(file, read_icdar(file).polygons, None)


def _prediction(text: str, file: Path, place: str) -> tuple[str, PagePrediction]:
    """Return the name of the page and what was found on it, from one JSON object."""
    content = from_json(text, source=place)
    image, detections = content.get("image"), content.get("detections")
    failed = "error" in content and detections is None
    detections = [] if failed else detections
    if not isinstance(image, str) or not isinstance(detections, list):
        raise DataError(f"{place} is not a prediction", got=json.dumps(content)[:80], need=NEED)
    if not all(isinstance(detection, dict) and "polygon" in detection for detection in detections):
        raise DataError(f"{place} has a detection without a polygon", need=NEED)
    width, height = content.get("width"), content.get("height")
    size = (width, height) if isinstance(width, int) and isinstance(height, int) else None
    polygons = [detection["polygon"] for detection in detections]
    name = str(PurePosixPath(image).with_suffix("")) if image else ""
    return name, PagePrediction(file, polygons, size, failed)


def _nfc(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
