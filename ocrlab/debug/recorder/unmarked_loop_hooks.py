"""Hooks on a model and its optimizer that show where a hand-written loop is when it draws its own batches.

Between `optimizer.step()` and the next training call of the model, the phase is "data". A call in eval mode, or without
gradients, belongs to a validation. The loss is the number that the model itself returns, if any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ocrlab.debug.instruments.call_hook import CallHook
from ocrlab.debug.instruments.tensor_tree import nested_tensors
from ocrlab.debug.recorder.stage_hooks import StepStart, compiling, unwrap
from ocrlab.run_folder.fail_safe import guard

if TYPE_CHECKING:
    from ocrlab.debug.recorder.loop_recorder import LoopRecorder


class StepHooks:
    """The hooks of one `LoopRecorder`, from `start` to `stop`; they act in a loop without `rec.batches`."""

    def __init__(self, loop: LoopRecorder) -> None:
        self.loop = loop
        self.handles: list[Any] = []
        self.output: Any = None  # the hook on what the model returned last
        self.in_step = False  # the record of a step is written, and its optimizer has not stepped
        self.has_stepped = False
        self.has_loss = False  # the program has passed the loss of this step to `rec.loss`

    def start(self) -> None:
        """Hook the calls of the models and the steps of the first optimizer."""
        self.stop()
        for model in self.loop.training.models:
            _, whole = unwrap(model)
            if not isinstance(whole, torch.jit.ScriptModule):
                self.handles.append(whole.register_forward_pre_hook(CallHook(self._enter)))
                self.handles.append(whole.register_forward_hook(CallHook(self._leave)))
        for optimizer in self.loop.training.optimizers[:1]:
            if hasattr(optimizer, "register_step_post_hook"):
                self.handles.append(optimizer.register_step_post_hook(self._end_step))

    def stop(self) -> None:
        """Remove every hook."""
        while self.handles:
            self.handles.pop().remove()
        self._forget_output()

    def give_up(self, error: Exception) -> None:
        """Switch the recording off; a replay fails by the error."""
        self.loop.give_up(error)
        self.stop()

    def _forget_output(self) -> None:
        if self.output is not None:
            self.output.remove()
            self.output = None

    def _is_unmarked(self) -> bool:
        """Return whether the loop marks no steps; the first call decides, but a replay waits: marks may come later."""
        loop = self.loop
        if loop.step_start is StepStart.UNKNOWN and loop.replay is None:
            loop.begin_steps(StepStart.UNMARKED)
        return loop.step_start is StepStart.UNMARKED

    @guard
    def _enter(self, module: nn.Module, _args: Any) -> None:
        if compiling():
            return
        loop, validates = self.loop, not module.training or not torch.is_grad_enabled()
        if self._is_unmarked() and not self.in_step:
            self.in_step = True
            if loop.replay is None:
                loop.begin_step()
        if loop.step_start is not StepStart.UNKNOWN:
            loop._set_phase("validation" if validates else "forward")

    @guard
    def _leave(self, module: nn.Module, _args: Any, output: Any) -> None:
        unknown = self.loop.step_start is StepStart.UNKNOWN
        if compiling() or unknown or not module.training or not torch.is_grad_enabled():
            return
        self._forget_output()
        tensors = [t for t in nested_tensors(output, 1) if t.is_floating_point() and t.requires_grad]
        loss = next((t for t in tensors if t.numel() == 1), None)
        if loss is not None and not self.has_loss:
            self.loop._record_loss(loss)
        if tensors:
            first = tensors[0] if loss is None else loss
            self.output = first.register_hook(lambda _gradient: self.loop._set_phase("backward"))

    @guard
    def _end_step(self, *_: Any) -> None:
        """Record that the optimizer has stepped, which ends a step of a loop that marks none."""
        loop = self.loop
        if compiling() or not self._is_unmarked():
            return
        self.has_stepped = True
        if not self.in_step and loop.replay is None:  # the model was not called in this step
            loop.begin_step()
        self.in_step = self.has_loss = False
        loop._set_phase("data")
        if loop.replay is not None:
            loop.replay.next_step(loop)
