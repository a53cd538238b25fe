"""Names of modules, nodes, operators, functions and values of a traced step, and the limits of its indices."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ocrlab.debug.replay.tracing import call_stack as traced_modules
from ocrlab.debug.replay.tracing import index_checks as traced_ranges
from ocrlab.debug.replay.tracing import nonfinite_tracker as traced_values
from ocrlab.debug.replay.tracing import operator_trace as traced_ops
from ocrlab.debug.replay.tracing.call_stack import AutogradFunctions, node_function


def test_modules_have_labels_with_the_numbers_that_matter() -> None:
    labels = [nn.Conv2d(3, 8, 1), nn.Linear(2, 3), nn.BatchNorm2d(4), nn.Embedding(5, 6), nn.ReLU()]
    words = ["Conv2d 3->8", "Linear 2->3", "BatchNorm2d 4", "Embedding 5->6", "ReLU"]
    assert [traced_modules.label(module) for module in labels] == words
    assert traced_modules.kind(torch.zeros(2, 3, dtype=torch.bfloat16)) == "(2, 3) bf16"


def test_a_schema_tells_views_from_writes() -> None:
    assert traced_ops.schema(torch.ops.aten.expand.default).view
    assert traced_ops.schema(torch.ops.aten.relu_.default).writes == ((0, "self"),)
    assert not traced_ops.schema(torch.ops.aten.add.Tensor).view
    assert traced_ops.is_foreign(torch.__file__) and not traced_ops.is_foreign(__file__)
    assert "test_module_stack.py" in traced_ops.line()


def test_a_finite_tensor_whose_sum_overflows_is_good() -> None:
    assert not traced_values.bad(torch.full((8,), 3e38))
    assert not traced_values.bad(torch.full((8,), 60000, dtype=torch.float16))
    assert traced_values.bad(torch.tensor([1.0, float("nan")]))
    assert not traced_values.bad(torch.tensor([1, 2]))


def test_the_users_own_line_comes_before_a_packages() -> None:
    def code(file: str) -> Any:
        return compile("def f(): pass", file, "exec").co_consts[0]

    package, own = code("/env/lib/python3.11/site-packages/torchmetrics/metric.py"), code("/x/train.py")
    assert traced_ops.innermost([(package, 9), (own, 3)]) == "/x/train.py:3 f"
    assert traced_ops.innermost([(package, 9)]).endswith("metric.py:9 f") and not traced_ops.innermost([])


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


def test_each_operator_has_its_limits() -> None:
    scores, truth = torch.zeros(2, 5), torch.tensor([1, 5])
    violation = traced_ranges.find_out_of_range("aten::nll_loss_forward", [scores, truth, None, 1, -100], {})
    assert violation is not None and (violation.index, violation.value, violation.allowed) == ((1,), 5.0, "0 to 4")
    assert traced_ranges.find_out_of_range("aten::nll_loss_forward", [scores, truth, None, 1, 5], {}) is None
    violation = traced_ranges.find_out_of_range("aten::embedding", [torch.zeros(3, 2), torch.tensor([[0, -1]])], {})
    assert violation is not None and violation.index == (0, 1)
    assert traced_ranges.find_out_of_range("aten::index", [torch.zeros(3), [torch.tensor([-3, 2])]], {}) is None
    assert traced_ranges.find_out_of_range("aten::index", [torch.zeros(3), [torch.tensor([3])]], {}) is not None
    assert traced_ranges.find_out_of_range("aten::gather", [torch.zeros(2, 3), 1, torch.tensor([[3]])], {}) is not None
    violation = traced_ranges.find_out_of_range(
        "aten::binary_cross_entropy", [torch.ones(2), torch.tensor([0.5, 1.5])], {}
    )
    assert violation is not None and (violation.role, violation.allowed) == ("target", "0 to 1")
    assert traced_ranges.find_out_of_range("aten::add", [scores, scores], {}) is None


class OnDevice(torch.Tensor):
    """Stands for a tensor on a GPU: `cpu` gives a plain one."""

    def cpu(self, *_: object) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


def test_what_is_returned_lies_on_the_host() -> None:
    """After the operator a GPU's context is dead, and nothing can be read from it any more."""
    index = torch.tensor([[0, 7]]).as_subclass(OnDevice)
    violation = traced_ranges.find_out_of_range("aten::embedding", [torch.zeros(3, 2), index], {})
    assert violation is not None and violation.index == (0, 1)
    assert type(violation.tensor) is torch.Tensor and type(violation.mask) is torch.Tensor


CODE = """
import torch
from ocrlab.debug.replay.tracing.tracer import prepare
prepare({"fp32": True, "threads": 1, "mkldnn": False})
with torch.autocast("cpu", torch.bfloat16):
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
assert torch.get_num_threads() == 1
assert not torch.backends.mkldnn.enabled
"""


def test_a_cell_is_switched() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    subprocess.run(
        [sys.executable, "-c", CODE], cwd=Path(__file__).parents[4], env=environment, check=True, timeout=120
    )
