"""Losses of torch and own ones: what is compared, which way it is pushed, and parts without a gradient."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ocrlab.debug.laws.loss_calls import maker
from ocrlab.debug.laws.result import Result
from tests.debug.laws.helpers import check

INPUTS = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
CLASSES = torch.arange(16) % 3
MASKS = (torch.arange(16) % 2).float().reshape(16, 1)
HOT = functional.one_hot(CLASSES, 3).float()


def findings_by_rule(last: nn.Module, width: int, loss: Callable[..., Any], targets: Tensor) -> dict[str, Result]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, width), last)
    report = check(model, (INPUTS, targets), lambda net, batch: loss(net(batch[0]), batch[1]))
    return {finding.rule: finding for finding in report.findings}


def test_a_column_minus_a_row_in_a_loss_of_ones_own() -> None:
    values = MASKS[:, 0]

    def huber(output: Tensor, wanted: Tensor) -> Tensor:
        off = (output - wanted).abs()
        return torch.where(off < 1, off.square() / 2, off - 0.5).mean()

    finding = findings_by_rule(nn.Identity(), 1, huber, values)["loss.broadcast"]
    assert "(16, 1) minus (16,)" in finding.got and "(16, 16)" in finding.got and finding.judgement == "warn"
    assert "loss.broadcast" in findings_by_rule(nn.Flatten(0), 1, lambda a, b: (b - a).square().mean(), MASKS)
    finding = findings_by_rule(nn.Flatten(0), 1, lambda a, b: -(a * b).mean(), MASKS)["loss.broadcast"]
    assert "(16,) times (16, 1)" in finding.got
    pairs = findings_by_rule(nn.Flatten(0), 1, lambda a, b: (a * b.norm(dim=1, keepdim=True)).mean(), MASKS)
    assert "loss.broadcast" not in pairs  # every pair is meant
    right = (
        lambda a, b: (a[:, 0] - b).square().mean(),
        lambda a, b: (a - b.unsqueeze(1)).square().mean(),
        lambda a, b: (a[:, 0][:, None] - b).abs().min(1).values.mean(),  # all with all, and meant
        lambda a, b: (a[:, 0] - b[:, None]).abs().min(1).values.mean(),
        lambda a, b: (a - a.mean(0)).square().mean() + (a[:, 0] - b).square().mean(),
    )
    for loss in right:
        assert findings_by_rule(nn.Identity(), 1, loss, values) == {}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(("last", "width", "loss", "targets", "rule", "text"), [
    (nn.Softmax(1), 3, functional.cross_entropy, CLASSES, "loss.twice", "softmax"),
    (nn.Sigmoid(), 1, functional.binary_cross_entropy_with_logits, MASKS, "loss.twice", "sigmoid"),
    (nn.Softmax(1), 3, functional.nll_loss, CLASSES, "loss.logarithm", "softmax"),
    (nn.Identity(), 1, functional.mse_loss, MASKS[:, 0], "loss.broadcast", "(16, 16)"),
    (nn.Sigmoid(), 1, functional.mse_loss, MASKS * 255, "targets.reach", "0 to 255"),
    (nn.ReLU(), 1, functional.l1_loss, MASKS - 2, "targets.reach", "-2 to -1"),
    (nn.Identity(), 3, lambda a, b: -functional.cross_entropy(a, b), CLASSES, "loss.sign", "minus sign"),
])  # fmt: skip
def test_what_trains_something_else_is_named(last, width, loss, targets, rule, text):
    findings = findings_by_rule(last, width, loss, targets)
    assert text in findings[rule].got
    assert findings[rule].do


@pytest.mark.parametrize(("last", "width", "loss", "targets"), [
    (nn.Identity(), 3, functional.cross_entropy, CLASSES),
    (nn.LogSoftmax(1), 3, functional.cross_entropy, CLASSES),  # it changes nothing the second time
    (nn.LogSoftmax(1), 3, functional.nll_loss, CLASSES),
    (nn.Identity(), 3, functional.cross_entropy, 0.9 * HOT + 0.1 / 3),
    (nn.Identity(), 3, functional.cross_entropy, HOT * MASKS),  # a row of zeros does not count
    (nn.Sigmoid(), 1, functional.binary_cross_entropy, MASKS),
    (nn.Sigmoid(), 1, functional.mse_loss, MASKS),
    (nn.Identity(), 1, functional.mse_loss, MASKS * 255),
    (nn.ReLU(), 1, functional.mse_loss, MASKS * 255),
    (nn.Identity(), 3, functional.cross_entropy, torch.tensor([1] * 4)),  # four may be equal by chance
])  # fmt: skip
def test_what_is_right_is_not_named(last: nn.Module, width: int, loss: Callable[..., Any], targets: Tensor) -> None:
    rules = findings_by_rule(last, width, lambda a, b: loss(a[: len(b)], b), targets)
    assert not {rule for rule in rules if rule.startswith(("loss.", "targets."))}


def test_a_loss_that_ignores_the_prediction_is_named() -> None:
    model = nn.Linear(4, 1)

    def loss(net: nn.Module, batch: Any) -> Tensor:
        net(batch[0])
        return functional.mse_loss(batch[1], batch[1]) + net.weight.square().sum()

    report = check(model, (INPUTS, MASKS), loss)
    assert "no gradient reaches" in next(f.got for f in report.findings if f.rule == "loss.ignores")


def test_the_function_that_computed_a_tensor_is_named_past_its_shape() -> None:
    logits = torch.randn(2, 1, 4, 4, requires_grad=True)
    assert maker(logits.sigmoid().squeeze(1).reshape(2, 16)[0]) == "SigmoidBackward0"
    assert maker(logits.sigmoid() * 2) == "MulBackward0"
    assert maker(logits) == ""


FRAMES = torch.randn(6, 16, 5, generator=torch.Generator().manual_seed(0))
LENGTHS = (torch.full((16,), 6), torch.full((16,), 2))


def test_logits_or_probabilities_where_logarithms_are_needed() -> None:
    class Frames(nn.Linear):
        def __init__(self, last: Callable[[Tensor], Tensor]) -> None:
            super().__init__(5, 4)
            self.end = last

        def forward(self, x: Tensor) -> Tensor:
            return self.end(super().forward(x))

    def ctc(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.ctc_loss(net(batch[0].transpose(0, 1)), batch[1], *LENGTHS)

    texts = torch.arange(32).reshape(16, 2) % 3 + 1
    for last, named in ((lambda x: x, True), (lambda x: x.softmax(-1), True), (lambda x: x.log_softmax(-1), False)):
        report = check(Frames(last), (FRAMES.transpose(0, 1), texts), ctc)
        assert ("loss.logarithm" in {f.rule for f in report.findings}) == named

    wanted = torch.randn(16, 3).softmax(1)
    for last, target, log, named in (
        (nn.Softmax(1), wanted, False, True),
        (nn.Identity(), wanted, False, True),
        (nn.LogSoftmax(1), wanted, False, False),
        (nn.LogSoftmax(1), wanted.log(), True, False),
    ):
        finding = findings_by_rule(last, 3, lambda a, b, log=log: functional.kl_div(a, b, log_target=log), target)
        assert ("loss.logarithm" in finding) == named, (last, log)


@pytest.mark.parametrize(("last", "width", "loss", "targets", "name"), [
    (nn.ReLU(), 3, functional.cross_entropy, CLASSES, "ReLU"),
    (nn.ReLU(), 1, functional.binary_cross_entropy_with_logits, MASKS, "ReLU"),
    (nn.Tanh(), 3, functional.cross_entropy, CLASSES, "tanh"),
])  # fmt: skip
def test_logits_that_are_cut_off(last, width, loss, targets, name):
    finding = findings_by_rule(last, width, loss, targets)["loss.logits"]
    assert name in finding.got and name in finding.do and finding.judgement == "warn"


def test_a_rectifier_before_a_mean_and_a_bounded_score_are_no_finding() -> None:
    pooled = nn.Sequential(nn.ReLU(), nn.Unflatten(1, (3, 2)), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    assert "loss.logits" not in findings_by_rule(pooled, 6, functional.cross_entropy, CLASSES)

    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 10 * x.tanh()

    assert "loss.logits" not in findings_by_rule(Scaled(), 3, functional.cross_entropy, CLASSES)
