"""The progress block: twice a second at the most, the last word always, and curves small enough to travel."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from ocrlab.reports import progress_view
from ocrlab.reports.view import View


class Clock:
    """A clock that is moved by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def train(step: int, total: int = 100, **figures: float) -> dict[str, object]:
    return {
        "kind": "train",
        "step": step,
        "total": total,
        "loss": 5.0 / (1 + step),
        "images_per_second": 7.5,
        **figures,
    }


def test_it_shows_at_once_then_twice_a_second_and_the_end(clock: Clock) -> None:
    shown: list[View] = []
    block = progress_view.Live("Training", shown.append, clock=clock)
    assert len(shown) == 1
    block({"kind": "start", "step": 0, "total": 100})
    for step in range(1, 101):
        clock.now += 0.1
        block(train(step))
    assert len(shown) <= 2 + 10 / progress_view.EVERY
    block({"kind": "end", "step": 100, "total": 100, "hmean@0.5": 0.9})
    assert "step 100 of 100" in shown[-1].text
    assert "hmean@0.5 0.900" in shown[-1].text
    assert "took 0:10" in shown[-1].text


def test_the_clock_moves_while_nothing_else_does(clock: Clock) -> None:
    shown: list[View] = []
    block = progress_view.Live("Training", shown.append, clock=clock)
    for _ in range(100):
        clock.now += 0.1
        block.tick()
    assert 8 <= len(shown) <= 11
    assert "so far 0:10" in shown[-1].text or "so far 0:09" in shown[-1].text
    block({"kind": "end", "step": 0, "total": 0})
    assert "…" not in shown[-1].text, "where nothing was counted nothing stands for it"
    clock.now += 5
    before = len(shown)
    block.tick()
    assert len(shown) == before  # what is over stands still


def test_it_says_what_is_left(clock: Clock) -> None:
    block = progress_view.Live("Training", lambda _view: None, clock=clock)
    block({"kind": "start", "step": 0, "total": 100})
    clock.now += 30
    block(train(25))
    assert "left, about 1:30" in block.view().text


def test_a_second_phase_counts_from_its_own_start(clock: Clock) -> None:
    block = progress_view.Live("Training", lambda _view: None, clock=clock)
    clock.now += 100
    block({"kind": "measure", "step": 1, "total": 5})
    clock.now += 2
    block({"kind": "measure", "step": 3, "total": 5})
    assert "page 3 of 5" in block.view().text
    assert "left, about 0:02" in block.view().text
    block({"kind": "end", "step": 5, "total": 5})
    assert "page 5 of 5" in block.view().text


def test_warnings_stay_and_are_escaped(clock: Clock) -> None:
    block = progress_view.Live("<Training>", lambda _view: None, clock=clock)
    block({"kind": "warning", "text": "page <7> left out"})
    assert "page &lt;7&gt; left out" in block.view().html
    assert "&lt;Training&gt;" in block.view().html


def test_nan_and_zero_steps_do_not_break_it(clock: Clock) -> None:
    block = progress_view.Live("Training", lambda _view: None, clock=clock)
    for step in range(3):
        block(train(step, total=0, loss=float("nan")))
    assert "nan" in block.view().text


def test_a_long_run_stays_small(clock: Clock) -> None:
    block = progress_view.Live("Training", lambda _view: None, limit=0.85, clock=clock)
    for step in range(5000):
        block(train(step, total=5000))
        block({"kind": "validate", "step": step, "total": 5000, "hmean@0.5": step / 5000})
    assert len(block.view().html) < 16_000


def test_a_curve_is_an_image_with_words() -> None:
    svg = ET.fromstring(progress_view.curve([(0, 1.0), (10, 3.0), (20, float("nan")), (30, 2.0)], "loss"))
    assert svg.get("role") == "img"
    assert svg.get("aria-label") == "loss from step 0 to 30: 2 at last, between 1 and 3"
    assert progress_view.curve([(0, float("nan"))], "loss") == ""


def test_what_is_done_in_parts_says_what_each_of_them_counts(clock: Clock) -> None:
    """Else a training of 20 steps and 3 faults ends as `step 3 of 3`."""
    block = progress_view.Live("Training, then planting faults", lambda _view: None, clock=clock)
    block({"kind": "start", "step": 0, "total": 20})
    for step in range(1, 21):
        block({"kind": "train", "unit": "step", "step": step, "total": 20, "loss": 1.0})
    assert "step 20 of 20" in block.view().text
    clock.now += 60
    block({"kind": "measure", "unit": "fault", "step": 1, "total": 3})
    clock.now += 10
    block({"kind": "measure", "unit": "fault", "step": 2, "total": 3})
    assert "faults: fault 2 of 3, loss 1.000" in block.view().text
    assert "left, about 0:10" in block.view().text
    block({"kind": "end", "unit": "fault", "step": 3, "total": 3})
    assert "faults: step 20 of 20, fault 3 of 3, loss 1.000, took 1:10" in block.view().text
    assert 'aria-valuenow="100"' in block.view().html
