from __future__ import annotations

import json
from pathlib import Path

import pytest

from ocrlab.config import schema as configs
from ocrlab.debug.bisect import training_trials
from ocrlab.debug.flight_record import ring_format, ring_writer
from ocrlab.errors import ConfigError


def test_only_what_is_not_safe_already_is_flipped() -> None:
    safe = {"runtime.workers": 0, "runtime.threads": 1, "trainer.precision": "fp32", "batch_size": 1, "crop": 64}
    safe |= {"trainer.accelerator": "cpu", "runtime.channels_last": False, "optim.lr": 1e-4}
    assert [factor.name for factor in training_trials.config_factors(configs.load(None, safe))] == [
        "decoder",
        "opencv threads",
        "data",
    ]
    full = configs.load(None, {"runtime.workers": 4, "trainer.accelerator": "cuda", "runtime.compile": True})
    assert len(training_trials.config_factors(full)) == 14
    explodes = training_trials.config_factors(configs.load(None, {**safe, "optim.lr": 10, "optim.grad_clip": 0}))
    assert [factor.good for factor in explodes][1:3] == ["optim.lr=0.0001", "optim.grad_clip=1.0"]


def test_against_makes_factors_of_what_differs() -> None:
    config = configs.load(None, {"batch_size": 16})
    (factor,) = training_trials.factors_against(config, ["batch_size=2", "optim.lr=0.002"])
    assert (factor.bad, factor.good, factor.overrides) == ("batch_size=16", "batch_size=2", ("batch_size=2",))
    with pytest.raises(ConfigError, match="changes nothing"):
        training_trials.factors_against(config, ["batch_size=16"])


def test_a_run_is_a_job_with_the_flips_in_it(tmp_path: Path) -> None:
    config = configs.load(None, {"batch_size": 4, "runtime.workers": 2, "trainer.accelerator": "cpu"})
    flips = training_trials.config_factors(config)
    names = [factor.name for factor in flips]
    start = training_trials.starter(config, flips, tmp_path / "bisect", 10)
    place = tmp_path / "bisect" / "one"
    place.mkdir()
    without = (1 << len(names)) - 1 - (1 << names.index("data"))
    alone = json.loads(Path(start(without, None, place)[0][-1]).read_text())
    assert alone["synthetic"]
    assert alone["names"] is None, "names of synthetic pages once took the place of the user's"
    unchanged = sum(1 << names.index(name) for name in ("data", "decoder"))
    words, env = start(unchanged, None, place)
    job = json.loads(Path(words[-1]).read_text())
    assert env == {}
    assert job["overrides"]["batch_size"] == "1"
    assert job["overrides"]["runtime.workers"] == "0"
    assert "decoder" not in job["overrides"]
    assert "synthetic" not in job
    assert job["start_method"] == "spawn"
    assert job["crops"] == 40, "as many crops as before, whatever the batch size"
    assert configs.load(job["config"], job["overrides"]).batch_size == 1


def test_a_run_of_some_pages_sees_each_as_often(tmp_path: Path) -> None:
    config = configs.load(None, {"batch_size": 4})
    folder = tmp_path / "bisect"
    start = training_trials.starter(config, training_trials.config_factors(config), folder, 10)
    (folder / "pages.json").write_text(json.dumps({"names": [f"page_{index}" for index in range(16)]}))
    (folder / "one").mkdir()
    words, _ = start(2**10 - 1, [3, 5], folder / "one")
    job = json.loads(Path(words[-1]).read_text())
    assert job["pages"] == [3, 5]
    assert job["crops"] == 3 * 2, "40 crops of 16 pages are two and a half rounds"


def test_the_step_that_failed_is_read_from_the_ring(tmp_path: Path) -> None:
    assert training_trials.find_failed_step(tmp_path) is None
    (tmp_path / "flight").mkdir()
    writer, _ = ring_writer.create(tmp_path / "flight", slots=8)
    writer.begin(ring_format.Step(number=7, micro=7, samples=["a", "b"]))
    writer.close()
    assert training_trials.find_failed_step(tmp_path) == (7, ["a", "b"])


def test_names_of_pages_that_nobody_wrote(tmp_path: Path) -> None:
    assert training_trials.read_page_names(tmp_path) == []
    (tmp_path / "pages.json").write_text("{torn")
    assert training_trials.read_page_names(tmp_path) == []


def test_smaller_batches_make_as_many_steps_as_the_same_crops_need(tmp_path: Path) -> None:
    config = configs.load(None, {"batch_size": 4, "trainer.max_steps": 10})
    start = training_trials.starter(
        config, training_trials.factors_against(config, ["batch_size=1"]), tmp_path / "bisect", 10
    )
    (tmp_path / "bisect" / "one").mkdir()
    job = json.loads(Path(start(0, None, tmp_path / "bisect" / "one")[0][-1]).read_text())
    assert configs.load(job["config"], job["overrides"]).trainer.max_steps == 40
    job = json.loads(Path(start(1, None, tmp_path / "bisect" / "one")[0][-1]).read_text())
    assert configs.load(job["config"], job["overrides"]).trainer.max_steps == 10
