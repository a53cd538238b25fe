import os
from collections.abc import Iterator
from typing import Any

import pytest

from ocrlab import run_folder
from ocrlab.debug.memory.monitor_log import Monitor, limits, newest
from ocrlab.records import Reading

GIB = 1 << 30


class Fake:
    """A stream of one card whose memory fills by 1 GiB a second."""

    def __init__(self, clock: Iterator[float] | None = None) -> None:
        self.used, self.hangs, self.closed = 0, False, False

    def latest(self) -> Reading:
        self.used += GIB
        mine = {"pid": os.getpid(), "bytes": self.used - GIB, "name": "python"}
        card = {"name": "Fake", "total": 80 * GIB, "used": self.used, "processes": [mine, {**mine, "pid": 1}]}
        missing = "the driver has not answered for 9 s: it hangs" if self.hangs else None
        return Reading("gpus", {"cards": [card], "driver": "580", "age": 0.2}, missing)

    def close(self) -> None:
        self.closed = True


def monitor(pid: int | None) -> tuple[Monitor, Fake]:
    stream, now = Fake(), iter(range(100_000))
    return Monitor(pid, stream=stream, clock=lambda: float(next(now))), stream


def test_a_card_that_fills_up_has_a_time_that_is_left() -> None:
    watching, stream = monitor(os.getpid())
    sample: dict[str, Any] = {}
    for _ in range(20):
        sample = watching.sample()
    assert sample["alive"]
    grown = sample["growth"]["gpu 0"]
    assert grown["grows"]
    assert grown["rate"] == pytest.approx(GIB)
    assert grown["left"] == pytest.approx(60, abs=1)
    ours, other = sample["gpus"]["cards"][0]["processes"]
    assert (ours["ours"], other["ours"]) == (True, False)
    stream.hangs = True
    sample = watching.sample()
    assert sample["gpus"]["cards"]
    assert "hangs" in sample["gpus"]["missing"]
    watching.close()
    assert stream.closed


def test_the_whole_machine_and_a_process_that_is_gone() -> None:
    watching, _ = monitor(None)
    sample = watching.sample()
    assert sample["host"]["total"] > sample["host"]["rss"] > 0
    assert limits(sample)["host"][1] == sample["host"]["total"]
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    gone, _ = monitor(pid)
    assert not gone.sample()["alive"]


def test_the_newest_run_that_lives(tmp_path) -> None:
    assert newest(tmp_path) is None
    old = run_folder.create(tmp_path, "old")
    old.succeed({})
    assert newest(tmp_path) is None
    living = run_folder.create(tmp_path, "living")
    assert newest(tmp_path) == (os.getpid(), living.path)
