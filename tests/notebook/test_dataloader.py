"""What the loader's notebook shows, from plain figures, and what it judges."""

import re
from typing import Any

import pytest

from ocrlab.notebook import dataloader
from ocrlab.notebook.dataloader_job import LoaderReport


@pytest.fixture
def report() -> LoaderReport:
    """Return the figures of a training with one worker whose second page is slow."""
    process = {
        "worker": 0, "pid": 7, "samples": 40, "samples_per_second": 12.5, "busy": 0.9, "on_cpu": 0.4,
        "threads": 2,
    }  # fmt: skip
    memory = {"rss_mb": 410.2, "private_mb": 90.0, "growth_mb": 130.4, "ended": ""}
    trial = {"step_ms": 50.0, "low_ms": 48.0, "high_ms": 55.0, "error": "", "waiting": 0.1, "first_s": 0.2, "steps": 9}
    broken = dict.fromkeys(("step_ms", "low_ms", "high_ms")) | {"error": "ValueError: <b>no</b>"}
    return LoaderReport(
        finding="Waiting for data is 40 % of the step",
        more=["Worker 0 took 130 MB of its own"],
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
    )  # fmt: skip


def test_every_section_says_its_finding_and_stands_alone(report: LoaderReport) -> None:
    views = [
        dataloader.waiting(report), dataloader.workers(report), dataloader.slowest(report),
        dataloader.recommended(report),
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
