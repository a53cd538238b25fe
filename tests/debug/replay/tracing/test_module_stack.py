"""Names of modules, nodes, operators and values, as a traced step tells them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ocrlab.debug.replay.tracing import backward_trace as traced_backward
from ocrlab.debug.replay.tracing import call_stack as traced_modules
from ocrlab.debug.replay.tracing import fault_report as traced_faults
from ocrlab.debug.replay.tracing import nonfinite_tracker as traced_values
from ocrlab.debug.replay.tracing import operator_trace as traced_ops
from ocrlab.debug.replay.tracing import step_trace as traced_step


def test_modules_have_labels_with_the_numbers_that_matter() -> None:
    labels = [nn.Conv2d(3, 8, 1), nn.Linear(2, 3), nn.BatchNorm2d(4), nn.Embedding(5, 6), nn.ReLU()]
    words = ["Conv2d 3->8", "Linear 2->3", "BatchNorm2d 4", "Embedding 5->6", "ReLU"]
    assert [traced_modules.label(module) for module in labels] == words
    assert traced_modules.kind(torch.zeros(2, 3, dtype=torch.bfloat16)) == "(2, 3) bf16"


def test_a_schema_tells_views_from_writes() -> None:
    assert traced_ops.schema(torch.ops.aten.expand.default).view
    assert traced_ops.schema(torch.ops.aten.relu_.default).writes == (0,)
    assert not traced_ops.schema(torch.ops.aten.add.Tensor).view
    assert traced_ops.is_foreign(torch.__file__) and not traced_ops.is_foreign(__file__)
    assert "test_module_stack.py" in traced_ops.line()


def test_a_finite_tensor_whose_sum_overflows_is_good() -> None:
    assert not traced_values.bad(torch.full((8,), 3e38))
    assert not traced_values.bad(torch.full((8,), 60000, dtype=torch.float16))
    assert traced_values.bad(torch.tensor([1.0, float("nan")]))
    assert not traced_values.bad(torch.tensor([1, 2]))


def test_a_node_belongs_to_the_operator_that_produced_it() -> None:
    backward = traced_backward.BackwardTrace(lambda _name, _place: None, lambda: None, lambda: None)
    backward.hook({})
    try:
        backward.mark({"path": "stem"})
        before = traced_backward.sequence()
        node_output = torch.ones(2, requires_grad=True).exp()
        backward.assign_last_node({"path": "stem", "line": "x.py:1"})
        assert node_output.grad_fn is not None and traced_backward.sequence() == before + 1
        assert backward.place(before)["line"] == "x.py:1"
    finally:
        backward.unhook()


def test_exceptions_are_the_same_through_a_chain() -> None:
    first = ValueError("x")
    second = RuntimeError("y")
    second.__cause__ = first
    assert traced_faults._same(first, second) and not traced_faults._same(KeyError("z"), second)
    assert traced_step.SHOWN >= 4


def test_the_users_own_line_comes_before_a_packages() -> None:
    def code(file: str) -> Any:
        return compile("def f(): pass", file, "exec").co_consts[0]

    package, own = code("/env/lib/python3.11/site-packages/torchmetrics/metric.py"), code("/x/train.py")
    assert traced_ops.innermost([(package, 9), (own, 3)]) == "/x/train.py:3 f"
    assert traced_ops.innermost([(package, 9)]).endswith("metric.py:9 f") and not traced_ops.innermost([])


def test_what_vmap_wraps_is_not_read() -> None:
    values = []
    torch.func.vmap(lambda x: (values.append(traced_values.bad(x)), x)[1])(torch.full((2, 2), float("nan")))
    assert values == [False]
