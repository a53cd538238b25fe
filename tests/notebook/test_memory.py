"""The sections of the memory notebook: what they say of figures that are known."""

from types import SimpleNamespace

import pytest

from ocrlab.debug.instruments.memory.timeline import Block, Process, Row, summarise
from ocrlab.notebook import memory, memory_job

MIB = 2**20


@pytest.fixture
def steps() -> memory_job.FollowedSteps:
    blocks = [
        Block(10 * MIB, "cpu", "head", "", "", 0, None, "parameters", "head"),
        Block(30 * MIB, "cpu", "encoder", "relu", "forward", 1, 5, "activations", "encoder"),
        Block(5 * MIB, "cpu", "<b>", "mm", "backward", 3, 4, "workspace", ""),
    ]
    step = summarise(0, blocks, 0, 6, "cpu")
    step = type(step)(**{**step.__dict__, "process": Process(False, 100 * MIB, 140 * MIB, 150 * MIB)})
    use = {"rss": 3 * MIB, "pss": 2 * MIB, "private": None, "shared": 0}
    tree = {"processes": [{"pid": 1, "role": "main", **use}, {"pid": 2, "role": "worker", **use}], "pss": 4 * MIB}
    tree |= {"rss": 6 * MIB, "shm": None, "cache": None, "limit": 64 * MIB}
    rows = [Row("encoder", activations=30 * MIB, forward=40 * MIB), Row("<b>", workspace=5 * MIB, backward=45 * MIB)]
    return memory_job.FollowedSteps(step, rows, "A finding.", "cpu", (2, 64), tree, 145 / 150)


def test_the_sections_show_the_followed_steps(steps: memory_job.FollowedSteps) -> None:
    assert "45.0 MiB" in memory.timeline(steps).text or "A finding." in memory.timeline(steps).text
    table = memory.modules(steps)
    assert "45.0" in table.text
    assert "&lt;b&gt;" in table.html
    assert "<b>" not in table.html
    account = memory.account(steps)
    assert "97 % of the high-water mark" in account.text
    assert "5.0 MiB" in account.text  # 150 - 45 - 100
    processes = memory.processes(steps)
    assert "The training and its loader worker really use 4.0 MiB" in processes.text
    assert "allows 64.0 MiB" in processes.html


def test_an_estimate_shows_every_part_and_their_sum() -> None:
    parts = {"parameters": 11 * MIB, "activations": 50 * MIB, "inside": 0}
    needed = {"parts": parts, "peak": 61 * MIB, "slope": 9.0 * MIB, "offset": 500 * MIB}
    needed["settled"] = {"trainer.accelerator": "cpu"}
    lab = SimpleNamespace(config=SimpleNamespace(batch_size=4))
    view = memory.estimate(lab, needed)  # type: ignore[arg-type]
    assert "batch_size=4 will need 61" in view.text
    assert "activations" in view.html
    assert "inside" not in view.html
    assert "9.0 MiB" in view.html
    cuda = memory.estimate(lab, {**needed, "settled": {"trainer.accelerator": "cuda"}})  # type: ignore[arg-type]
    assert "would hold" not in cuda.html
