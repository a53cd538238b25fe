"""What the comparing notebook computes: every run's detector on the same pages that can be read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from ocrlab import run_folder
from ocrlab.config import schema as configs
from ocrlab.inference import checkpoint
from ocrlab.model.dbnet import Detector
from ocrlab.notebook import compare_job


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
