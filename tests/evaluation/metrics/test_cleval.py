"""CLEval against the published evaluator's figures, page by page and by hand."""

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ocrlab.evaluation.metrics import cleval
from ocrlab.evaluation.metrics.cleval import PageCharacters

Box = tuple[np.ndarray[Any, Any], str]


def box(left: float, top: float, right: float, bottom: float) -> np.ndarray[Any, Any]:
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], float)


LINE = box(0, 0, 100, 20)


def totals(page: PageCharacters) -> dict[str, float]:
    """Return the sums of a page under the evaluator's names."""
    right, taken, false = (int(column.sum()) for column in (page.right, page.taken, page.false))
    return {
        "num_char_gt": page.truth.sum(), "num_char_det": taken + false,
        "gran_score_recall": page.cuts.sum(), "num_char_tp_recall": page.detected.sum(),
        "gran_score_precision": page.merges.sum(), "num_char_tp_precision": right, "num_char_fp": false,
        "num_splitted": np.count_nonzero(page.cuts), "num_merged": np.count_nonzero(page.merges),
        "num_char_overlapped": taken - right,
    }  # fmt: skip


@pytest.mark.parametrize(("setting", "with_texts", "with_ignored"), [
    ("det_text_dc", True, True), ("det_pseudo_dc", False, True), ("det_pseudo_nodc", False, False),
])  # fmt: skip
def test_every_page_of_the_reference_has_the_same_counts(shared, setting, with_texts, with_ignored):
    pages = json.loads((shared / "golden" / "eval_inputs.json").read_text())
    wanted = json.loads((shared / "golden" / "eval_outputs.json").read_text())[f"cleval_official_{setting}"]
    sums = dict.fromkeys(wanted["totals"], 0.0)
    for page, want in zip(pages, wanted["per_image"], strict=True):
        ignored = page["ignore"] if with_ignored else [False] * len(page["gt"])
        counts = totals(cleval.judge(page["gt"], ignored, page["text"] if with_texts else None, page["det"]))
        assert counts == want, page["id"]
        sums = {name: value + counts[name] for name, value in sums.items()}
    assert sums == wanted["totals"]


def documents(file: Path) -> dict[str, list[Box]]:
    """Return the boxes of every document in a zip of the reference, quads with their texts."""
    pages = {}
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            lines = archive.read(name).decode("utf-8-sig").replace("\r", "").split("\n")
            fields = [line.split(",", 8) for line in lines if line]
            rows = [(np.array(row[:8], float).reshape(4, 2), plain(row[8] if len(row) > 8 else "")) for row in fields]
            pages[name.removeprefix("gt_").removeprefix("res_")] = rows
    return pages


def plain(text: str) -> str:
    quoted = re.fullmatch(r'\s*"(.*)"\s*', text)
    return quoted[1].replace("\\\\", "\\").replace('\\"', '"') if quoted else text


def test_the_documents_of_the_reference_have_its_published_figures(shared: Path) -> None:
    place = shared / "data" / "cleval_kr"
    truth, detected = (documents(place / f"{kind}_eval_doc_v1_kr.zip") for kind in ("gt", "res"))
    pages = []
    for name, boxes in truth.items():
        others = detected.get(name, [])
        ignored, texts = [text == "###" for _, text in boxes], [text for _, text in boxes]
        pages.append(cleval.judge([p for p, _ in boxes], ignored, texts, [p for p, _ in others]))
    total = {name: sum(int(getattr(page, name).sum()) for page in pages) for name in PageCharacters.__annotations__}
    recall = (total["right"] - total["cuts"]) / total["truth"]
    precision = (total["right"] - total["merges"]) / (total["taken"] + total["false"])
    assert 2 * recall * precision / (recall + precision) == pytest.approx(0.977989360950786, abs=1e-12)


def test_characters_are_detected_by_their_centres() -> None:
    page = cleval.judge([LINE], [False], ["0123456789"], [box(0, 0, 74, 20)])  # centres at 5, 15 ... 95
    assert (page.truth.tolist(), page.detected.tolist()) == ([10], [7])
    assert (page.recall, page.precision, page.hmean) == (0.7, 1.0, pytest.approx(1.4 / 1.7))


def test_each_cut_and_each_merge_costs_a_single_character() -> None:
    cut = cleval.judge([LINE], [False], ["0123456789"], [box(0, 0, 50, 20), box(50, 0, 100, 20)])
    assert (cut.cuts.tolist(), cut.merges.tolist(), cut.recall, cut.precision) == ([1], [0, 0], 0.9, 1.0)
    merged = cleval.judge([LINE, box(110, 0, 210, 20)], [False] * 2, ["0123456789"] * 2, [box(0, 0, 210, 20)])
    assert (merged.cuts.tolist(), merged.merges.tolist()) == ([0, 0], [1])
    assert (merged.recall, merged.precision) == (1.0, 19 / 20)


def test_a_false_detection_adds_the_characters_of_its_shape() -> None:
    flat, square, tall = box(200, 0, 300, 20), box(200, 0, 220, 20), box(200, 0, 210, 200)
    page = cleval.judge([LINE], [False], ["abc"], [LINE, flat, square, tall])
    assert page.false.tolist() == [0, 1, 1, 10]
    assert page.precision == 3 / 15


def test_detections_in_ignored_text_do_not_count_where_no_text_lies_over_it() -> None:
    block = box(0, 0, 200, 100)
    inside, text = box(10, 60, 60, 80), box(0, 0, 100, 20)
    page = cleval.judge([block, text], [True, False], None, [inside, text])
    assert page.detection_counts.tolist() == [False, True], "counted text is cut out of the ignored block first"
    assert (page.recall, page.precision) == (1, 1)


def test_curved_text_has_its_characters_on_its_middle_line() -> None:
    turn = np.linspace(np.pi, 0, 9)
    arc = np.stack([np.cos(turn), -np.sin(turn)], axis=1)
    text = np.concatenate([100 * arc, (80 * arc)[::-1]]) + 100
    left = np.concatenate([100 * arc[:5], (80 * arc[:5])[::-1]]) + 100
    assert cleval.judge([text], [False], ["0123456789"], [text]).detected.tolist() == [10]
    assert cleval.judge([text], [False], ["0123456789"], [left]).detected.tolist() == [5]


BROKEN: dict[str, Any] = {
    "a crossing outline": [[0, 0], [100, 20], [100, 0], [0, 20]],
    "no area": [[0, 0], [10, 0], [5, 0], [0, 0]],
    "NaN": np.full((4, 2), np.nan),
    "infinity": [[np.inf, 0], [10, 0], [10, 10], [0, 10]],
    "far beyond any page": [[1e200, 0], [0, 1e200], [-1e200, -1e200], [0, 0]],
    "nothing": [],
    "rows of unequal length": [[0, 0], [10, 0], [1]],
    "None": None,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_detection_is_false_and_a_broken_truth_is_left_out(name: str) -> None:
    whole = cleval.judge([LINE], [False], ["abc"], [LINE])
    page = cleval.judge([LINE, box(0, 50, 9, 59)], [False, True], ["abc", ""], [LINE, BROKEN[name]])
    assert page.false[1] >= 1 and page.precision < whole.precision and page.recall == whole.recall
    left = cleval.judge([BROKEN[name], LINE, BROKEN[name]], [False, False, True], ["abc"] * 3, [LINE])
    assert (left.truth.tolist(), left.hmean) == ([0, 3, 0], 1)
