"""Rules of a step that ends well: the rate, the decay, the loss after it, what is frozen."""

from __future__ import annotations

import torch
from torch import nn

from ocrlab.trace import contract
from tests.trace.test_contract_forward import classes, data, one, rules


def test_a_loss_that_was_made_anew_is_named_and_not_every_weight() -> None:
    model = nn.Linear(8, 3)
    report = contract.check(model, data(), lambda m, b: torch.tensor(classes(m, b).item(), requires_grad=True))
    assert "made anew" in one(report, "loss.gradient").got
    assert "gradient.missing" not in rules(report)


def test_a_warm_up_from_zero_is_no_finding_and_a_rate_of_zero_is_one() -> None:
    model = nn.Linear(8, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    report = contract.check(model, data(), classes, optimizer=optimizer)
    assert report.findings == []
    assert any("learning rate is 0 now" in text for text in report.unchecked)
    report = contract.check(model, data(), classes, optimizer=torch.optim.AdamW(model.parameters(), lr=0.0))
    assert one(report, "optimizer.rate").got == "learning rate 0"


def test_a_decay_that_eats_the_weights_and_a_step_that_makes_it_worse() -> None:
    model = nn.Linear(8, 3)
    report = contract.check(
        model, data(), classes, optimizer=torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=100)
    )
    assert "10.0% of the weights" in one(report, "optimizer.decay").got
    report = contract.check(model, data(), classes, optimizer=torch.optim.SGD(model.parameters(), lr=1e3))
    assert "larger" in one(report, "step.worse").got
    assert rules(contract.check(model, data(), classes, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))) == set()


def test_a_name_that_freezes_all_but_the_biases() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.endswith("bias")
    assert "0.weight, 1.weight" in one(contract.check(model, data(), classes), "weights.biases").got
    model[1].weight.requires_grad = True
    assert "weights.biases" not in rules(contract.check(model, data(), classes))
