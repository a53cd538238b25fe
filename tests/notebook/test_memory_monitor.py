from __future__ import annotations

import os
import time
from typing import Any

import pytest

from ocrlab.notebook import memory_monitor
from ocrlab.reports.view import View

MIB, GIB = 1 << 20, 1 << 30


class Fake:
    """A monitor whose samples are given; after the last one the process is gone."""

    def __init__(self, count: int) -> None:
        self.count, self.left, self.closed = count, count, False

    def sample(self) -> dict[str, Any]:
        at = self.count - self.left
        self.left -= 1
        grown = {"grows": at > 3, "rate": 5.0 * MIB, "left": 90.0}
        return {
            "seconds": float(at), "alive": self.left >= 0, "pid": os.getpid(),
            "host": {"processes": [], "pss": (100 + 5 * at) * MIB, "rss": 0, "available": GIB},
            "shm": None, "group": None, "growth": {"host": grown},
            "gpus": {"missing": "the driver has not answered for 9 s: it hangs <b>"},
        }  # fmt: skip

    def close(self) -> None:
        self.closed = True


def test_it_draws_until_the_process_is_gone_and_no_faster_than_twice_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_monitor, "FASTEST", 0.01)
    shown: list[View] = []
    fake = Fake(6)
    watching = memory_monitor.Watching(None, 0.0, shown.append, fake)  # type: ignore[arg-type]
    watching.thread.join(20)
    watching.stop()
    watching.stop()
    assert fake.closed
    assert watching.problem == ""
    assert len(shown) == 7
    assert "so far" in shown[0].text
    assert "in all" in shown[-1].text
    assert watching.seconds == 0.01  # never faster than FASTEST


def test_the_view_stands_alone() -> None:
    fake = Fake(8)
    view = memory_monitor.view([fake.sample() for _ in range(6)], running=False)
    assert "Memory over 5 s in all: processes: 125.00 MiB of" in view.text
    assert "+5.00 MiB/s, full in 90 s" in view.text
    assert "<polyline" in view.html
    assert 'role="img"' in view.html
    assert "hangs &lt;b&gt;" in view.html
    assert "http" not in view.html


def test_an_error_of_the_monitor_never_reaches_the_cell() -> None:
    class Broken(Fake):
        def sample(self) -> dict[str, Any]:
            raise OSError("no /proc")

    watching = memory_monitor.Watching(None, 0.0, lambda _: None, Broken(1))  # type: ignore[arg-type]
    watching.thread.join(20)
    watching.stop()
    assert watching.problem == "OSError: no /proc"


def test_around_a_block_the_kernel_itself_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[View] = []
    monkeypatch.setattr(memory_monitor.Block, "update", lambda _self, view: shown.append(view))
    with memory_monitor.live() as watching:
        for _ in range(400):
            if shown:
                break
            time.sleep(0.05)
    assert not watching.thread.is_alive()
    assert "processes:" in shown[-1].text
    assert "in all" in shown[-1].text
