"""What the recorders of a hand-written loop and of Lightning have in common: they record a training, or replay it."""

from __future__ import annotations

import contextlib
import os
import shlex
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from ocrlab.debug.flight_record import program_info
from ocrlab.debug.recorder import replay_registration
from ocrlab.debug.recorder.replay_registration import Session
from ocrlab.debug.recorder.step_recorder import StepRecorder
from ocrlab.run_folder import watcher_link
from ocrlab.run_folder.fail_safe import print_message, report, worker_ended


class Recording:
    """One training that writes through a `StepRecorder`, or is made again by the session of a replay, or neither.

    An error of the recorder switches it off and never stops a training; a replay fails by its errors.
    """

    step_recorder: StepRecorder | None = None
    replay: Session | None = None
    undo: list[Callable[[], Any]]  # removes what was put into the program

    def _begin(self, make: Callable[[], StepRecorder]) -> None:
        """Join the replay of this training, or make its recorder; neither in the replay of another training."""
        self.undo = []
        self.replay = replay_registration.session()
        if self.replay is None and program_info.job() is None:
            try:
                self.step_recorder = make()
            except Exception as error:
                if worker_ended(error):
                    raise
                report(error, "not started; training continues")

    def give_up(self, error: Exception) -> None:
        """Switch the recording off; a replay fails by the error."""
        if self.replay is not None:
            raise error
        if self.step_recorder is not None:
            self.step_recorder.give_up(error)
        else:
            report(error, "off for the rest of this run; training continues")

    def _hook_steps(self, optimizers: Iterable[Any]) -> None:
        """Record each step of some optimizers; one without such hooks is left alone."""
        recorder = self.step_recorder
        before = (lambda *_: self._set_phase("optimiser")) if recorder is None else recorder.before_step
        for optimizer in optimizers:
            if hasattr(optimizer, "register_step_pre_hook"):
                self.undo.append(optimizer.register_step_pre_hook(before).remove)

    def _set_phase(self, name: str) -> None:
        recorder = self.step_recorder or self.replay
        if recorder is not None:
            recorder.phase(name)

    def _record_loss(self, loss: Any, scale: float = 1.0) -> None:
        recorder = self.step_recorder or self.replay
        if recorder is not None:
            recorder.loss(loss, scale)

    def _fail(self, error: BaseException) -> None:
        """Record the error that ends the training."""
        if self.replay is not None:
            self.replay.failed(error)
        if self.step_recorder is not None:
            self.step_recorder.member.end("failed", error=error)
            self.step_recorder.failed(error)
            self.step_recorder.finish()
            if isinstance(error, Exception) and not watcher_link.watched():  # watch prints it itself
                run = shlex.quote(os.path.relpath(self.step_recorder.folder.parent))
                print_message(f"`ocrlab replay {run}` runs the failed step again: module, operator and sample")

    def _record_early_exit(self, error: BaseException | None, where: str, epochs: int | None) -> None:
        """Record that `sys.exit(0)` ended the program in the middle of its training."""
        monitor = self.step_recorder.monitor if self.step_recorder is not None else None
        if monitor is None or not isinstance(error, SystemExit) or error.code:
            return
        frames = traceback.extract_tb(error.__traceback__)
        line = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        of = "" if epochs is None else f" of {epochs}"
        monitor.stats.ended = (
            f"the training did not end: sys.exit(0){line} ended the program in {where}{of}, without an error"
        )

    def _remove_hooks(self) -> None:
        while self.undo:
            with contextlib.suppress(Exception):
                self.undo.pop()()
