"""Every rule of the contract on a step that breaks it, and none on steps that are right, written as users do."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ocrlab.debug.instruments.tensor_tree import dotted_tensors
from ocrlab.errors import ConfigError
from tests.debug.laws.helpers import check, finding_of, rules


class Net(nn.Module):
    """A small network with all that a step has: BatchNorm, dropout, two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.drop = nn.Dropout(0.2)
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.stem(x)))


def batch(size: int = 8) -> dict[str, Any]:
    labels = torch.randint(0, 4, (3, size, size))
    return {"images": torch.rand(3, 3, size, size), "labels": labels, "names": ["a.png", "b.png", "c.png"]}


def loss(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch["images"]), batch["labels"])


def adamw(model: nn.Module, lr: float = 1e-2) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=lr)


def test_a_step_that_is_right_has_no_finding_and_leaves_nothing() -> None:
    model, values = Net(), batch()
    optimizer = adamw(model)
    loss(model, values).backward()
    optimizer.step()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    state = str(optimizer.state_dict())
    draws = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())  # noqa: NPY002
    report = check(model, values, loss, optimizer=optimizer)
    assert report.findings == [] and report.ok
    assert [stage.name for stage in report.stages][:3] == ["stem.0", "stem.1", "stem.2"]
    assert report.stages[-1].name == "" and report.stages[-1].shapes == ((3, 4, 8, 8),)
    assert set(report.norms) == {name for name, _ in model.named_parameters()}
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    for name, p in model.named_parameters():
        assert p.grad is not None and torch.equal(p.grad, gradients[name])
    assert str(optimizer.state_dict()) == state
    assert draws[:2] == (random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002
    assert torch.equal(draws[2], torch.get_rng_state())
    assert model.training and not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@dataclass
class Item:
    pixels: Tensor
    target: Tensor


@pytest.mark.parametrize("batch_value", [
    (torch.rand(4, 5), torch.rand(4, 1)),
    [torch.rand(4, 5), torch.rand(4, 1)],
    Item(torch.rand(4, 5), torch.rand(4, 1)),
    SimpleNamespace(x=torch.rand(4, 5), y=torch.rand(4, 1)),
    {"x": torch.rand(4, 5), "deep": {"y": [torch.rand(4, 1)]}, "names": list("abcd")},
], ids=["tuple", "list", "dataclass", "object", "nested"])  # fmt: skip
@pytest.mark.parametrize("back", ["tensor", "dict", "object", "tuple"])
def test_batches_and_losses_of_any_kind(batch_value: Any, back: str) -> None:
    x, y = (tensor for _, tensor in dotted_tensors(batch_value))

    def step(model: nn.Module, _batch: Any) -> Any:
        total = functional.mse_loss(model(x), y)
        return {"tensor": total, "dict": {"loss": total}, "object": SimpleNamespace(loss=total), "tuple": (total, 1)}[
            back
        ]

    model = nn.Linear(5, 1)
    assert check(model, batch_value, step, optimizer=adamw(model)).findings == []


def test_a_loss_of_torch_takes_outputs_and_targets() -> None:
    batch = (torch.rand(4, 5), torch.rand(4, 2))
    for function in (nn.MSELoss(), functional.mse_loss, functional.binary_cross_entropy_with_logits):
        assert check(nn.Linear(5, 2), batch, function).ok


def test_a_missing_optimizer_is_reported() -> None:
    assert any("schedule: " in text for text in check(Net(), batch(), loss).unchecked)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_named_by_tensor_sample_and_pixel(value: float) -> None:
    values = batch()
    values["images"][1, 2, 5, 3] = value
    report = check(Net(), values, loss)
    finding = finding_of(report, "batch.finite")
    assert finding.where == "batch.images, sample 'b.png', channel 2, pixel x=3 y=5"
    assert "1 of 576" in finding.got
    first = finding_of(report, "forward.finite")
    assert first.where.startswith("stem.0 (Conv2d), sample 'b.png'") and "its input is not finite either" in first.got
    assert "loss.finite" in rules(report) and "gradient.finite" in rules(report)


def test_the_first_module_that_makes_nan_is_named_and_not_those_after_it() -> None:
    model = Net()
    with torch.no_grad():
        model.stem[1].weight[4] = float("inf")
    report = check(model, batch(), loss)
    finding = finding_of(report, "forward.finite")
    assert finding.where.startswith("stem.1 (BatchNorm2d)") and "its weight is not" in finding.got


def test_half_precision_that_overflows_should_compute_in_float32() -> None:
    class Loud(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return (super().forward(x) * 1e3).half() * 1e4

    def step(model: nn.Module, batch: Any) -> Tensor:
        return model(batch).float().sum()

    finding = finding_of(check(nn.Sequential(Loud(4, 4)), torch.rand(2, 4), step), "forward.finite")
    assert "float16" in finding.got and "float32" in finding.do


INDEXED: dict[str, tuple[Callable[[nn.Module, Tensor], Tensor], str]] = {
    "cross_entropy": (lambda m, i: functional.cross_entropy(m.table(i % 4), i), "target of cross_entropy"),
    "module": (lambda m, i: nn.CrossEntropyLoss()(m.table(i % 4), i), "target of cross_entropy"),
    "nll": (lambda m, i: functional.nll_loss(m.table(i % 4).log_softmax(1), i), "target of nll_loss"),
    "embedding": (lambda m, i: m.table(i).sum(), "input of embedding"),
}


@pytest.mark.parametrize("name", INDEXED)
def test_an_index_out_of_bounds_is_named_before_the_kernel_runs(name: str) -> None:
    step, text = INDEXED[name]
    model = nn.ModuleDict({"table": nn.Embedding(4, 4)})
    model.table = model["table"]  # type: ignore[assignment]
    wrong = check(model, torch.tensor([0, 1, 7, 3]), step)
    finding = finding_of(wrong, "indices.bounds")
    assert (
        text in finding.where
        and ("position 2" in finding.where or "sample 2" in finding.where)
        and finding.got.startswith("7 ")
    )
    assert finding.need in ("0 to 3", "-4 to 3")
    assert "step.raised" not in rules(wrong)
    assert "indices.bounds" not in rules(check(model, torch.tensor([0, 1, 2, 3]), step))


def test_the_ignored_index_and_negative_positions_are_allowed() -> None:
    model = nn.Embedding(4, 4)
    labels = torch.tensor([0, -100, 3, 1])
    assert check(model, labels, lambda m, i: functional.cross_entropy(m(i.clamp_min(0)), i)).ok
    mine = torch.tensor([0, 255, 3, 1])
    step = lambda m, i: functional.cross_entropy(m(i % 4), i, ignore_index=255)  # noqa: E731
    assert check(model, mine, step).ok
    assert check(model, torch.tensor([-1, 2]), lambda m, i: m.weight[i].sum()).ok


def test_probabilities_and_targets_of_the_bce() -> None:
    x, y = torch.rand(3, 4), torch.full((3, 2), 0.5)
    y[2, 1] = 1.5
    report = check(nn.Linear(4, 2), (x, y), nn.BCEWithLogitsLoss())
    assert finding_of(report, "probabilities.range").where.endswith("sample 2, position 1")
    raw = check(nn.Linear(4, 2), (x * 9, y.clamp(0, 1)), nn.BCELoss())
    assert "with_logits" in finding_of(raw, "probabilities.range").do


def test_what_is_raised_is_a_finding_with_its_line() -> None:
    report = check(Net(), {"images": torch.rand(2, 5, 8, 8)}, loss)
    finding = finding_of(report, "step.raised")
    assert finding.where.startswith("stem.0") and "RuntimeError" in finding.got
    assert "raised RuntimeError" in report.unchecked[0]
    ours = check(Net(), batch(), lambda output, target: output.mean() - target)  # type: ignore[attr-defined]
    assert "loss(model, batch)" in finding_of(ours, "step.raised").do


@pytest.mark.parametrize(("back", "rule"), [
    (lambda m, b: loss(m, b).item(), "loss.type"),
    (lambda m, b: loss(m, b).detach(), "loss.gradient"),
    (lambda m, b: functional.cross_entropy(m(b["images"]), b["labels"], reduction="none"), "loss.scalar"),
    (lambda m, b: loss(m, b) * float("nan"), "loss.finite"),
    (lambda m, b: None, "loss.type"),
])  # fmt: skip
def test_losses_that_cannot_be_trained_on(back: Any, rule: str) -> None:
    assert rule in rules(check(Net(), batch(), back))


def test_a_detached_branch_and_a_module_that_is_never_called() -> None:
    class Torn(Net):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.stem(x).detach())

    report = check(Torn(), batch(), loss)
    texts = {f.where: f.got for f in report.findings if f.rule == "gradient.missing"}
    assert texts["stem (3 parameters)"].endswith("the module ran")
    assert texts["spare (4 parameters)"].endswith("was never called")
    assert not report.ok


def test_a_gradient_that_is_not_finite() -> None:
    def root(model: nn.Module, batch: Any) -> Tensor:
        return (model(batch["images"]) * 0).pow(2).sum().sqrt()

    assert "gradient.finite" in rules(check(Net(), batch(), root))


def test_weights_that_the_optimizer_forgets_or_should_not_move() -> None:
    model = Net()
    few = torch.optim.AdamW(model.head.parameters(), lr=1e-2)
    assert finding_of(check(model, batch(), loss, optimizer=few), "optimizer.missing").where == "stem (3 parameters)"
    idle = torch.optim.AdamW([{"params": model.head.parameters()}, {"params": model.stem.parameters(), "lr": 0.0}])
    assert finding_of(check(model, batch(), loss, optimizer=idle), "optimizer.rate").where == "stem (3 parameters)"
    other = torch.optim.AdamW([*model.parameters(), *Net().parameters()])
    assert check(model, batch(), loss, optimizer=other).findings == []


def test_a_frozen_layer_with_a_rate_that_momentum_moves() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    loss(model, batch()).backward()
    optimizer.step()
    model.stem.requires_grad_(False)  # its old gradients are still there
    report = check(model, batch(), loss, optimizer=optimizer)
    assert finding_of(report, "weights.frozen_moved").where == "stem (3 parameters)"


def test_an_update_that_is_lost_in_rounding() -> None:
    model = nn.Linear(4, 4).bfloat16()
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = torch.optim.SGD([model.weight], lr=1e-9)
    report = check(model, torch.rand(2, 4).bfloat16(), lambda m, x: m(x).float().sum(), optimizer=optimizer)
    assert "bfloat16" in finding_of(report, "weights.still").got


def test_modes_of_the_model_and_of_batchnorm() -> None:
    assert "mode.eval" in rules(check(Net().eval(), batch(), loss))
    model = Net()
    model.stem[1].eval()
    assert check(model, batch(), loss).findings == []


def test_several_optimizers_and_a_compiled_model() -> None:
    model = Net()
    both = [torch.optim.SGD(model.stem.parameters(), lr=0.1), torch.optim.AdamW(model.head.parameters())]
    assert check(model, batch(), loss, optimizer=both).findings == []
    compiled = torch.compile(Net(), backend="eager")
    report = check(compiled, batch(), loss)
    assert report.findings == [] and any(stage.name.endswith("stem.0") for stage in report.stages)


def test_sparse_gradients_and_optimizers_that_need_a_closure() -> None:
    table = nn.Embedding(5, 2, sparse=True)
    sparse = torch.optim.SparseAdam(table.parameters())
    report = check(table, torch.tensor([1, 2]), lambda m, x: m(x).sum(), optimizer=sparse)
    assert report.findings == [] and report.norms["weight"] == pytest.approx(2.0)
    model = nn.Linear(4, 1)
    lbfgs = torch.optim.LBFGS(model.parameters())
    report = check(model, torch.rand(2, 4), lambda m, x: m(x).square().sum(), optimizer=lbfgs)
    assert report.findings == [] and "LBFGS needs a closure" in report.unchecked[0]


def test_what_is_no_model_and_no_loss_is_refused() -> None:
    with pytest.raises(ConfigError, match="Only a torch module can be checked"):
        check(None, torch.ones(1), lambda model, batch: batch)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="The loss cannot be called"):
        check(nn.Linear(1, 1), torch.ones(1), "mse")  # type: ignore[arg-type]
