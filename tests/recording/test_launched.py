"""In a process that Lightning has started itself, the recorder hears of an error; elsewhere Lightning tells it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning
import pytest

from ocrlab.flight import record_program
from ocrlab.recording import launched


class Trainer:
    def _run_stage(self) -> str:
        return self.does()

    does: Callable[[], str] = staticmethod(lambda: "done")


def _fails() -> str:
    raise ValueError("a torn page")


def test_what_is_used_of_lightning_in_private_is_there() -> None:
    assert callable(lightning.Trainer._run_stage)


def test_an_error_is_told_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_program, "started", lambda: [1])
    trainer: Any = Trainer()
    told: list[BaseException] = []
    undo = launched.hear(trainer, told.append)
    assert trainer._run_stage() == "done" and not told
    trainer.does = _fails
    with pytest.raises(ValueError, match="a torn page"):
        trainer._run_stage()
    assert [str(error) for error in told] == ["a torn page"]
    undo()
    assert "_run_stage" not in vars(trainer)

    def broken(_error: BaseException) -> None:
        raise OSError("the disk is full")

    launched.hear(trainer, broken)
    with pytest.raises(ValueError, match="a torn page"):
        trainer._run_stage()


def test_in_the_first_process_of_a_program_lightning_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer: Any = Trainer()
    launched.hear(trainer, lambda _error: None)()
    monkeypatch.setattr(record_program, "started", lambda: [1])
    launched.hear(object(), lambda _error: None)()
    assert not vars(trainer)
