"""The comparing notebook: what it computes on the same pages, differences, curves, intervals."""

import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocrlab import run_folder
from ocrlab.config import schema as configs
from ocrlab.errors import RunError
from ocrlab.evaluation.metrics import page_scores as metric
from ocrlab.inference import checkpoint
from ocrlab.model.dbnet import Detector
from ocrlab.notebook import compare, compare_job
from ocrlab.notebook.compare_job import ComparedPage, Comparison, PageResult

BOX = np.array([[10, 10], [90, 10], [90, 30], [10, 30]], dtype=np.float32)
TRUTH = [BOX + np.array((0, 40 * row), np.float32) for row in range(5)]
IGNORED = np.array([False, False, False, False, True])


def page_result(*rows: int) -> PageResult:
    polygons = [BOX + np.array((0, 40 * row), np.float32) for row in rows]
    return PageResult(polygons, metric.judge(TRUTH, IGNORED, None, polygons))


def run(folder: Path, rate: float, hmean: float) -> Path:
    created = run_folder.create(folder, f"r{rate:g}", configs.dump(configs.load(overrides=[f"optim.lr={rate}"])))
    table = run_folder.Table(created.metrics_file)
    for step in (1, 2, 3):
        table.write({"step": step, "loss": 3 / step, "fit_seconds": 2.0 * step})
    table.write({"step": 3, "hmean@0.5": hmean, "pages": 4.0})
    (created.checkpoints / f"best-{hmean}.ckpt").write_bytes(b"x")
    created.succeed({"hmean@0.5": hmean, "seconds": 9.0, "steps": 3})
    return created.path


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    image = tmp_path / "page.png"
    Image.new("RGB", (120, 240), "white").save(image)
    folders = [run(tmp_path / "runs", 0.001, 0.6), run(tmp_path / "runs", 0.002, 0.8)]
    pages = [
        ComparedPage(f"p{at}", image, TRUTH, IGNORED, [page_result(0, 1, 9), page_result(1, 2, 3, 4)])
        for at in range(8)
    ]
    pages += [ComparedPage("worse", image, TRUTH, IGNORED, [page_result(0, 1, 2, 3), page_result(0)])]
    return Comparison(folders, str(tmp_path), "val", False, pages, ["a note"])


def test_what_differs(comparison: Comparison) -> None:
    view = compare.settings(comparison)
    assert "One setting differs: optim.lr" in view.text
    assert re.search(r"optim\.lr +0\.001 +0\.002", view.text)
    assert "a note" in view.html
    assert "0.6000" in view.text


def test_the_difference_with_its_interval(comparison: Comparison) -> None:
    difference = compare.differences(comparison, 1)["@0.5"]
    assert difference.pages == 9
    assert "cannot tell on 9 pages" in compare.real(comparison).text  # one page that got much worse may be more of many
    many = Comparison(comparison.runs, "d", "val", False, comparison.pages * 3)
    assert "B is better than A in hmean@0.5: +" in compare.real(many).text
    assert compare.sentence("B", compare.differences(many, 1)["@0.5"]).endswith("27 pages")
    few = Comparison(comparison.runs, "d", "val", False, comparison.pages[:3])
    assert "3 pages are too few" in compare.real(few).text
    same = Comparison([comparison.runs[0]] * 2, "d", "val", False, [_twice(page) for page in comparison.pages])
    assert "cannot tell on 9 pages" in compare.real(same).text


def test_with_several_runs_the_intervals_hold_together(comparison: Comparison) -> None:
    three = Comparison(
        [*comparison.runs, comparison.runs[1]], "d", "val", False, [_and_again(page) for page in comparison.pages * 3]
    )
    alone = Comparison(comparison.runs, "d", "val", False, comparison.pages * 3)
    assert compare.differences(three, 1)["@0.5"].low < compare.differences(alone, 1)["@0.5"].low
    view = compare.real(three)
    assert "97.5 % from" in view.html
    assert "2 runs are compared with A" in view.html
    assert "95 % from" in compare.real(alone).html
    assert "compared with A" not in compare.real(alone).html


def _and_again(page: ComparedPage) -> ComparedPage:
    return ComparedPage(page.name, page.image, page.polygons, page.ignored, [*page.results, page.results[1]])


def _twice(page: ComparedPage) -> ComparedPage:
    return ComparedPage(page.name, page.image, page.polygons, page.ignored, [page.results[0]] * 2)


class Judging:
    def __init__(self) -> None:
        self.outcomes: list[tuple[str, float, float, float]] = []

    def outcome(self, metric: str, value: float, limit: float, warn: float) -> None:
        self.outcomes.append((metric, value, limit, warn))


def test_it_passes_only_for_certain(comparison: Comparison) -> None:
    lab = Judging()
    compare.judge(lab, comparison)  # type: ignore[arg-type]
    compare.judge(lab, Comparison(comparison.runs, "d", "val", False, comparison.pages[:2]))  # type: ignore[arg-type]
    [(name, value, limit, warn), (_, even, *_)] = lab.outcomes
    assert name == "share of draws in which B is ahead of A"
    assert 0.9 < value <= 1
    assert (limit, even) == (0.975, 0.5)
    assert math.isclose(warn, 0.025)


def test_which_runs_are_meant(comparison: Comparison, tmp_path: Path) -> None:
    first, second = map(str, comparison.runs)
    assert compare_job.chosen([str(tmp_path / "runs")]) == comparison.runs  # the older first
    assert compare_job.chosen([second, first]) == comparison.runs[::-1]  # as they were named
    for places in ([first], [first, str(tmp_path)]):
        with pytest.raises(RunError, match="not two runs to compare"):
            compare_job.chosen(places)
    assert compare_job.best(comparison.runs[0]).name == "best-0.6.ckpt"
    compare_job.best(comparison.runs[0]).unlink()
    with pytest.raises(RunError, match="no checkpoint that could be compared"):
        compare_job.best(comparison.runs[0])


def test_a_damaged_page_is_left_out_for_all_runs_and_reported(root: Path, tmp_path: Path) -> None:
    """Two long trainings are done, and went on without it; their comparison must, too."""
    data = tmp_path / "data"
    shutil.copytree(root / "data_samples" / "val", data / "val")
    images = sorted((data / "val" / "images").iterdir())
    images[0].write_bytes(images[0].read_bytes()[:2000])
    small = {"data": str(data), "width": 16, "evaluate.long_side": 128, "post.box_threshold": 0.0}
    config = configs.load(overrides={**small, "trainer.accelerator": "cpu", "trainer.precision": "fp32"})
    runs = []
    for name in "ab":
        run = run_folder.create(tmp_path / "runs", name, configs.dump(config))
        model = Detector(config.encoder, config.decoder, config.width)
        checkpoint.save_detector(model, run.checkpoints / "best-0.5.ckpt", config, 0, {})
        run.succeed({"hmean@0.5": 0.5})
        runs.append(str(run.path))
    events: list[dict[str, Any]] = []
    comparison = compare_job.compare(config, runs, "", 3, events.append)
    assert [str(run) for run in comparison.runs] == runs
    assert [page.name for page in comparison.pages] == [images[7].stem, images[15].stem]
    assert all(len(page.results) == 2 for page in comparison.pages)
    assert (
        len(comparison.notes) == 1
        and comparison.notes[0].startswith("Left out: ")
        and images[0].name in comparison.notes[0]
    )
    assert events[-1] == {"kind": "end", "unit": "page", "step": 4, "total": 4}
