"""Rules that hold before anything runs: modes, boxes in pixels, shared blocks, frozen parts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ocrlab.debug.instruments.step_check import checker
from ocrlab.debug.instruments.step_check.static_rules import check_untrained_part
from tests.debug.instruments.step_check.helpers import classes, data, finding_of, rules

INPUTS = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("wanted", [True, False])
def test_requires_grad_set_on_a_module_and_not_on_its_parameters(wanted: bool) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 8)), nn.Linear(8, 3))
    model[0].requires_grad_(not wanted)
    model[0].requires_grad = wanted
    finding = finding_of(checker.check(model, data(), classes), "weights.switch")
    assert finding.where == "0" and ("frozen" if wanted else "trained") in finding.got
    model[0].requires_grad_(wanted)
    assert "weights.switch" not in rules(checker.check(model, data(), classes))


def head_and_trunk() -> nn.Sequential:
    trunk = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()).requires_grad_(False)
    trunk[0].weight.data.mul_(3)
    trunk[1].running_mean.fill_(0.1)
    return nn.Sequential(trunk, nn.Linear(8, 3))


def test_a_head_in_train_mode_on_a_frozen_trunk_in_eval_mode_is_meant() -> None:
    model = head_and_trunk().eval()
    assert finding_of(checker.check(model, data(), classes), "mode.eval").judgement == "fail"
    model[1].train()
    assert not {"mode.eval", "mode.batchnorm"} & rules(checker.check(model, data(), classes))


def test_statistics_of_frozen_batchnorm_are_a_single_line_and_a_teacher_has_none() -> None:
    trunk = nn.Sequential(*(layer for _ in range(9) for layer in (nn.Linear(8, 8), nn.BatchNorm1d(8))))
    model = nn.Sequential(trunk.requires_grad_(False), nn.Linear(8, 3))
    finding = finding_of(checker.check(model, data(), classes), "mode.batchnorm_frozen")
    assert finding.where.startswith("0.1, 0.3") and finding.where.endswith("and 3 more")

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student, self.teacher = head_and_trunk().requires_grad_(True), head_and_trunk().requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.student(x) + 0 * self.teacher(x).detach()

    assert "mode.batchnorm_frozen" not in rules(checker.check(Pair(), data(), classes))


def test_a_gradient_of_what_was_frozen_since_matters_where_the_optimiser_holds_it() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))
    classes(model, data()).backward()
    model[0].requires_grad_(False)
    every, head = (torch.optim.SGD(part.parameters(), 0.1) for part in (model, model[1]))
    assert "gradient.stale" in rules(checker.check(model, data(), classes, optimizer=every))
    assert "gradient.stale" not in rules(checker.check(model, data(), classes, optimizer=head))


def findings_by_rule(model: nn.Module) -> dict[str, checker.Finding]:
    report = checker.check(model, INPUTS, lambda net, x: net(x).square().mean())
    assert report.loss is not None
    return {finding.rule: finding for finding in report.findings}


def backbone() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 6), nn.LayerNorm(6))


def test_a_frozen_part_that_nothing_was_loaded_into() -> None:
    source = nn.DataParallel(backbone())
    with torch.no_grad():
        for p in source.parameters():
            p.mul_(1.5).add_(0.01)
    model = nn.Sequential(backbone(), nn.Linear(6, 2))
    model[0].requires_grad_(False)
    model[0].load_state_dict(source.state_dict(), strict=False)  # every key begins with module.
    finding = findings_by_rule(model)["weights.untrained"]
    assert "2 normalisations" in finding.got and "module." in finding.do and finding.judgement == "warn"
    model[0].load_state_dict(source.module.state_dict())
    assert "weights.untrained" not in findings_by_rule(model)


def test_trained_parts_and_random_features_are_no_finding() -> None:
    assert not list(check_untrained_part(nn.Sequential(backbone(), nn.Linear(6, 2))))
    trained_part = backbone().requires_grad_(False)
    trained_part(INPUTS)  # BatchNorm has counted
    assert not list(check_untrained_part(trained_part))
    random = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64)).requires_grad_(False)
    assert not list(check_untrained_part(nn.Sequential(random, nn.Linear(64, 2))))
    trained = backbone().requires_grad_(False)
    trained[3].weight.data[0, 0] = 2.0  # beyond the bounds of a random start
    assert not list(check_untrained_part(trained))
    assert not list(
        check_untrained_part(nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6)).requires_grad_(False))
    )  # one layer
