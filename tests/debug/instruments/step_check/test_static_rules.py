"""What is wrong before a step runs: a switch that switches nothing, modes that nobody meant."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ocrlab.debug.instruments.step_check import checker, static_rules
from tests.debug.instruments.step_check.test_forward_pass import classes, data, finding_of, rules


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


@pytest.mark.parametrize(("size", "is_finding"), [(0.01, True), (1.0, False)])
def test_boxes_as_shares_of_the_image_for_a_detector_that_wants_pixels(size: float, is_finding: bool) -> None:
    from torchvision.models.detection.transform import GeneralizedRCNNTransform

    model = nn.Sequential(nn.Linear(2, 2))
    model.add_module("transform", GeneralizedRCNNTransform(64, 64, [0.5], [0.5]))
    named = [("1.0.boxes", torch.tensor([[4.0, 5.0, 40.0, 60.0]]) * size), ("1.0.labels", torch.tensor([1]))]
    assert bool(list(static_rules.check_box_scale(model, named))) == is_finding
    assert not list(static_rules.check_box_scale(nn.Linear(2, 2), named)), "others want shares"
