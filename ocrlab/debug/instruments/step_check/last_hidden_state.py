"""Recurrent layers whose last step is read behind the padding: told from which of their steps get a gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ocrlab.debug.instruments.step_check.findings import Finding, is_readable
from ocrlab.debug.instruments.step_check.padding_in_loss import find_padding


class RecurrentWatch:
    """While it is entered, what recurrent layers of a model give is kept; ask for `findings` after the backward pass.

    Which steps are padding is told by the tokens that an embedding of the model got in the same pass.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.fills: list[Tensor] = []  # of tokens (rows, length): where padding stands
        self.outputs: list[tuple[str, nn.RNNBase, Tensor, Tensor]] = []  # layer, its steps, its last state
        self.handles: list[Any] = []

    def __enter__(self) -> RecurrentWatch:
        for name, module in self.model.named_modules():
            if isinstance(module, nn.Embedding):
                self.handles.append(module.register_forward_hook(self._tokens))
            elif isinstance(module, nn.RNNBase):
                self.handles.append(module.register_forward_hook(self._steps(name)))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def _tokens(self, _module: nn.Module, args: Any, _output: Any) -> None:
        ids = args[0] if args else None
        if isinstance(ids, Tensor) and ids.ndim == 2 and is_readable(ids):
            with torch._C.DisableTorchFunction():
                for rows in (ids, ids.t()):
                    padding = find_padding(rows, len(rows))
                    self.fills += [padding[1]] if padding is not None else []

    def _steps(self, name: str) -> Any:
        def keep(module: nn.RNNBase, _args: Any, output: Any) -> None:
            steps, state = output
            state = state[0] if isinstance(state, tuple) else state
            if isinstance(steps, Tensor) and steps.ndim == 3 and steps.requires_grad and not steps.is_leaf:
                steps.retain_grad()
                state.retain_grad()
                self.outputs.append((name, module, steps, state))

        return keep

    def findings(self) -> Iterator[Finding]:
        """Yield each layer of which only the last step or state is read, which is padding in many rows."""
        for name, module, steps, state in self.outputs:
            sizes = steps.shape[:2] if module.batch_first else (steps.shape[1], steps.shape[0])
            fill = next((fill for fill in self.fills if fill.shape == sizes), None)
            if fill is None or not bool(fill[:, -1].any()):
                continue
            count = int(fill[:, -1].sum())
            if _only_last(steps, module.batch_first) or (steps.grad is None and _forward_part(module, state)):
                got = f"only its last step is read, and in {count} of {len(fill)} rows that is padding"
                do = "Pack the sequences with their lengths (pack_padded_sequence), or take the step at length - 1"
                yield Finding("recurrent.padding", name or "the model", got, "the last step that is none", do, "warn")


def _only_last(steps: Tensor, batch_first: bool) -> bool:
    """Tell whether the gradient of all steps is 0 but for the last one of each row."""
    if steps.grad is None:
        return False
    by_step = steps.grad.detach().abs().amax((0, 2) if batch_first else (1, 2))  # (length,)
    return bool(by_step[-1] > 0) and not bool(by_step[:-1].any())


def _forward_part(module: nn.RNNBase, state: Tensor) -> bool:
    """Tell whether the last state of the way forward gets a gradient."""
    ways = 2 if module.bidirectional else 1
    gradient = state.grad
    return gradient is not None and bool(gradient.detach()[::ways].any())
