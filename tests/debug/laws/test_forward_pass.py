"""Numbers that pass through modules, with which nothing is learned."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.debug.laws.helpers import check, classes, data, finding_of, rules


def test_numbers_with_which_nothing_is_learned_are_named_at_their_module() -> None:
    inputs, targets = data()
    dead = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    nn.init.constant_(dead[0].bias, -100.0)
    assert finding_of(check(dead, (inputs, targets), classes), "forward.dead").where == "1 (ReLU)"
    report = check(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3)), (inputs * 255, targets), classes)
    assert finding_of(report, "input.scale").where == "0 (Linear)"
    report = check(nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 3)), (inputs * 255, targets), classes)
    assert "input.scale" not in rules(report)
    deep = nn.Sequential(*[part for _ in range(24) for part in (nn.Linear(8, 8), nn.Sigmoid())], nn.Linear(8, 3))
    report = check(deep, (inputs, targets), classes, optimizer=torch.optim.SGD(deep.parameters(), lr=0.1))
    assert finding_of(report, "gradient.vanishing").where.startswith("0")


def test_images_that_are_divided_twice() -> None:
    torch.manual_seed(0)
    images, targets = torch.randint(0, 256, (16, 1, 8, 8)) / 255, torch.arange(16) % 3
    rest = (nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), *rest)
    assert rules(check(model, (images, targets), classes)) == set()
    finding = finding_of(check(model, (images / 255, targets), classes), "input.scale")
    assert finding.where == "0 (Conv2d)" and "255 twice" in finding.do
    assert "input.scale" not in rules(check(model, (images / 25, targets), classes))
    assert "input.scale" not in rules(check(model, (images / 255 - 0.001, targets), classes))


def test_a_dropout_that_leaves_nothing() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.99), nn.Flatten(), nn.LazyLinear(3))
    images = torch.rand(2, 1, 7, 7)
    model(images)
    report = check(model, (images, torch.tensor([1, 2])), classes)
    assert "99%" in finding_of(report, "mode.dropout").got


def test_a_loss_that_calls_the_model_under_vmap_is_let_alone() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))

    def ensemble(model: nn.Module, batch: Any) -> Tensor:
        weights = {name: torch.stack([p, 0.9 * p]) for name, p in model.named_parameters()}
        call = torch.func.vmap(lambda own, x: torch.func.functional_call(model, own, (x,)), (0, None))
        return nn.functional.cross_entropy(call(weights, batch[0]).mean(0), batch[1])

    report = check(net, data(), ensemble)
    assert "step.raised" not in rules(report)
    assert report.ok
