"""What the loader's notebook shows, from plain figures, and what it judges."""

import re
from typing import Any

import pytest
import torch

from ocrlab.config.schema import load
from ocrlab.data.dataset import Batch
from ocrlab.notebook import dataloader
from ocrlab.notebook.dataloader_job import LoaderReport, training_step
from ocrlab.training.auto_settings import Machine
from ocrlab.training.lightning_module import Training


@pytest.fixture
def report() -> LoaderReport:
    """Return the figures of a training with one worker whose second page is slow."""
    process = {
        "worker": 0, "pid": 7, "samples": 40, "samples_per_second": 12.5, "busy": 0.9, "on_cpu": 0.4,
        "threads": 2,
    }  # fmt: skip
    memory = {"rss_mb": 410.2, "pss_mb": 200.0, "private_mb": 90.0, "growth_mb": 130.4, "ended": ""}
    trial = {"step_ms": 50.0, "low_ms": 48.0, "high_ms": 55.0, "error": "", "waiting": 0.1, "first_s": 0.2, "steps": 9}
    broken = dict.fromkeys(("step_ms", "low_ms", "high_ms")) | {"error": "ValueError: <b>no</b>"}
    return LoaderReport(
        finding="Waiting for data is 40 % of the step",
        more=["Worker 0 took 130 MB of its own"],
        waiting=0.4,
        steps=[{"wait": 0.02, "compute": 0.03, "first": i == 0} for i in range(9)] + [{"wait": 9.0, "compute": None}],
        workers=[process | memory],
        slowest=[{"sample": "nowhere.png", "seconds": 0.4, "times": 9.0, "doing": "computes", "worker": 0}],
        recommended="1 worker, 2 threads: 50 ms a step instead of 80 ms with 0 workers, 2 threads, 38 % less",
        trials=[
            {"workers": 0, "threads": 2, **trial, "step_ms": 80.0, "low_ms": 78.0, "high_ms": 84.0},
            {"workers": 1, "threads": 2, **trial},
            {"workers": 2, "threads": 2, **trial, **broken},
        ],
        best=(1, 2),
        used=(0, 2),
        speed=0.625,
        turns=3,
    )  # fmt: skip


def test_every_section_says_its_finding_and_stands_alone(report: LoaderReport, root: Any) -> None:
    from ocrlab.config.schema import Config

    slow = dataloader.slowest(report, Config(data=str(root / "data_samples")))
    views = [
        dataloader.waiting(report), dataloader.workers(report), slow, dataloader.recommended(report),
    ]  # fmt: skip
    texts = "\n".join(view.text for view in views)
    for part in (
        "Waiting for data is 40 % of the step",
        "1 workers load; memory grew by 130 MB",
        "Some samples are slow: the slowest takes 9.0 times the median",
        "1 worker, 2 threads: 50 ms a step",
        "ocrlab train runtime.workers=1 runtime.threads=2",
    ):
        assert part in texts
    html = "".join(view.html for view in views)
    assert "Worker 0 took 130 MB of its own." in html
    assert "&lt;b&gt;no&lt;/b&gt;" in html  # somebody's error is text
    assert not re.search(r'(src|href)="(?!data:|#)', html)
    assert html.count("<img") == html.count("alt=")


def test_the_outcome_is_the_speed_against_the_best(report: LoaderReport) -> None:
    judged: list[tuple[Any, ...]] = []

    class Lab:
        def outcome(self, metric: str, value: float, limit: float, warn: float, unit: str) -> None:
            judged.append((metric, value, limit, warn))

    dataloader.judge(Lab(), report, 0.9)  # type: ignore[arg-type]
    assert judged == [("speed of the settings in use", 0.625, 0.9, pytest.approx(0.6))]
    assert dataloader.command(report)[1] == "DataLoader(..., num_workers=1); torch.set_num_threads(2)"


def test_a_step_moves_the_weights_where_a_training_moves_them() -> None:
    """Also with settings that are not the defaults: the ratio of hard negatives, the weights of the terms, clipping."""
    settings = {"width": 16, "loss.negative_ratio": 1.0, "loss.bce": 2.0, "optim.weight_decay": 0.3, "optim.lr": 0.01}
    config = load(overrides={**settings, "trainer.accelerator": "cpu", "trainer.precision": "fp32"})
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2, 3, 64, 64), generator=generator, dtype=torch.uint8)
    maps = tuple((torch.rand(2, 1, 64, 64, generator=generator) > 0.6).float() for _ in range(4))
    batch = Batch(images, maps, ["a", "b"])
    model, optimiser, step = training_step(config)
    theirs = Training(config, Machine("cpu", 1, 0, bf16=False, channels_last=False, reasons={}))
    theirs.detector.load_state_dict(model.state_dict())
    optimizer = theirs.configure_optimizers()["optimizer"]
    for group in optimizer.param_groups:
        group["lr"] = config.optim.lr  # without the warm-up
    theirs.training_step(batch, 0).backward()
    theirs.configure_gradient_clipping(optimizer, config.optim.grad_clip)
    optimizer.step()
    step(batch)
    assert optimiser.state, "a step was made"
    for (name, ours), wanted in zip(model.named_parameters(), theirs.detector.parameters(), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-6, msg=name)
