"""Functions of the user's own are seen from their entry to their exit, and torch's own are left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ocrlab.debug.replay.tracing import operator_trace
from ocrlab.debug.replay.tracing.call_stack import AutogradFunctions, node_function
from ocrlab.debug.replay.tracing.operator_trace import is_foreign


class Twice(torch.autograd.Function):
    """Doubles; raises for what is negative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, inside: list[str | None], functions: AutogradFunctions) -> Tensor:
        inside.append(functions.top)
        if float(x.min()) < 0:
            raise ValueError("negative")
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * 2, None, None


def test_it_is_on_top_while_it_runs_and_what_it_computes_is_the_same() -> None:
    tops: list[str | None] = []
    functions = AutogradFunctions(lambda: tops.append(functions.top))
    functions.hook()
    try:
        x = torch.ones(2, requires_grad=True)
        inside: list[str | None] = []
        y = Twice.apply(x, inside, functions)
        checkpoint(lambda x: x * 2, x, use_reentrant=True)
        with pytest.raises(ValueError, match="negative") as error:
            Twice.apply(-x, inside, functions)
    finally:
        functions.unhook()
    y.sum().backward()
    assert inside == ["Twice", "Twice"] and tops == ["Twice", None] * 2
    assert x.grad is not None and x.grad.tolist() == [2.0, 2.0]
    assert node_function(y.grad_fn) == "Twice" and node_function((x * 2).grad_fn) is None
    assert functions.raised == (error.value, "Twice") and functions.top is None
    functions.unhook()
    assert Twice.apply(x, inside, functions).tolist() == [2.0, 2.0] and len(tops) == 4


def test_lines_of_the_tracer_and_of_torch_are_nobodys() -> None:
    assert is_foreign(operator_trace.__file__) and is_foreign(str(Path(operator_trace.__file__).with_name("step.py")))
    assert is_foreign(torch.nn.functional.__file__)
    assert not is_foreign(str(Path(operator_trace.__file__).parents[1] / "losses" / "__init__.py")) and not is_foreign(
        __file__
    )
