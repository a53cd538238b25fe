"""Rules of a step that ends well: the rate, the decay, the loss after it, what is frozen."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from ocrlab.debug.instruments.step_check import checker, step_rules
from tests.debug.instruments.step_check.test_forward_pass import classes, data, finding_of, rules


def test_a_loss_without_a_graph_is_named_and_not_every_weight() -> None:
    model = nn.Linear(8, 3)
    report = checker.check(model, data(), lambda m, b: torch.tensor(classes(m, b).item(), requires_grad=True))
    assert "made anew" in finding_of(report, "loss.gradient").got
    assert "gradient.missing" not in rules(report)


def test_a_warm_up_from_zero_is_no_finding_but_a_rate_of_zero_is() -> None:
    model = nn.Linear(8, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    report = checker.check(model, data(), classes, optimizer=optimizer)
    assert report.findings == []
    assert any("learning rate is 0 now" in text for text in report.unchecked)
    report = checker.check(model, data(), classes, optimizer=torch.optim.AdamW(model.parameters(), lr=0.0))
    assert finding_of(report, "optimizer.rate").got == "learning rate 0"


def test_a_decay_that_eats_the_weights_and_a_step_that_makes_it_worse() -> None:
    model = nn.Linear(8, 3)
    report = checker.check(
        model, data(), classes, optimizer=torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=100)
    )
    assert "10.0% of the weights" in finding_of(report, "optimizer.decay").got
    report = checker.check(model, data(), classes, optimizer=torch.optim.SGD(model.parameters(), lr=1e3))
    assert "larger" in finding_of(report, "step.worse").got
    assert rules(checker.check(model, data(), classes, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))) == set()


def test_a_name_that_freezes_all_but_the_biases() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.endswith("bias")
    assert "0.weight, 1.weight" in finding_of(checker.check(model, data(), classes), "weights.biases").got
    model[1].weight.requires_grad = True
    assert "weights.biases" not in rules(checker.check(model, data(), classes))


def test_steps_that_half_precision_rounds_away() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 3)).bfloat16()
    batch = (data()[0].bfloat16(), data()[1])
    small = checker.check(model, batch, classes, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-6))
    assert "rounds the others back" in next(f.got for f in small.findings if f.rule == "weights.still")
    large = checker.check(model, batch, classes, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2))
    assert "weights.still" not in rules(large)


def test_dropout_in_eval_mode_that_is_meant_and_that_is_not() -> None:
    class Net(nn.Linear):
        def __init__(self, way: str) -> None:
            super().__init__(8, 3)
            self.way, self.own = way, nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.way == "forgotten":
                x = nn.functional.dropout(x, 0.5)
            elif self.way == "anew":
                x = nn.Dropout(0.5)(x)
            elif self.way == "written":
                x = nn.functional.dropout(x, 0.5, training=True)
            else:
                x = self.own(x)
            return super().forward(x)

    for way, named in (("forgotten", True), ("anew", True), ("written", False), ("right", False)):
        assert ("eval.repeats" in rules(checker.check(Net(way), data(), classes))) == named, way


def test_the_dropout_of_another_model_is_not_looked_at() -> None:
    teacher = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 3))

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return classes(model, batch) + (model(batch[0]) - teacher(batch[0]).detach()).square().mean()

    assert "eval.repeats" not in rules(checker.check(nn.Linear(8, 3), data(), loss))


class Gated(nn.Module):
    """Blocks that begin as next to nothing, as LayerScale lets them: `scale` times a sigmoid of a sigmoid."""

    def __init__(self, scale: float, slope: float) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.gamma, self.slope = nn.Parameter(torch.full((8,), scale)), slope
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + self.gamma * self.slope * self.inner(x))


class Wrapped(nn.Module):
    """A block of a block, so that the gate has an owner."""

    def __init__(self, scale: float, slope: float) -> None:
        super().__init__()
        self.block = Gated(scale, slope)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


def test_a_gate_that_begins_small_explains_small_gradients() -> None:
    assert "gradient.vanishing" not in rules(checker.check(Wrapped(1e-6, 1e-3), data(), classes))
    finding = finding_of(checker.check(Wrapped(1.0, 1e-10), data(), classes), "gradient.vanishing")
    assert "block.inner" in finding.where


def test_a_loss_of_none_is_reported_with_its_source() -> None:
    report = checker.check(nn.Linear(8, 3), data(), lambda model, batch: None)
    assert "`return`" in finding_of(report, "loss.type").do and "loss None" not in str(report)
    assert ".item()" in finding_of(checker.check(nn.Linear(8, 3), data(), lambda model, batch: 0.5), "loss.type").do


def test_the_norm_of_a_complex_gradient_has_both_parts() -> None:
    net = nn.Module()
    net.spectrum = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    net.spectrum.grad = torch.tensor([3 + 4j, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert step_rules.gradient_norms(net) == {"spectrum": 5.0}
