"""Rules that hold before anything runs: modes, boxes in pixels, shared blocks, frozen parts."""

import torch
from torch import nn

from ocrlab.debug.laws.coverage import untrained_part
from ocrlab.debug.laws.result import Result
from tests.debug.laws.helpers import check, classes, data, finding_of, rules

INPUTS = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))


def head_and_trunk() -> nn.Sequential:
    trunk = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()).requires_grad_(False)
    trunk[0].weight.data.mul_(3)
    trunk[1].running_mean.fill_(0.1)
    return nn.Sequential(trunk, nn.Linear(8, 3))


def test_a_head_in_train_mode_on_a_frozen_trunk_in_eval_mode_is_meant() -> None:
    model = head_and_trunk().eval()
    assert finding_of(check(model, data(), classes), "mode.eval").judgement == "fail"
    model[1].train()
    assert not {"mode.eval", "mode.batchnorm"} & rules(check(model, data(), classes))


def findings_by_rule(model: nn.Module) -> dict[str, Result]:
    report = check(model, INPUTS, lambda net, x: net(x).square().mean())
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
    assert not list(untrained_part(nn.Sequential(backbone(), nn.Linear(6, 2))))
    trained_part = backbone().requires_grad_(False)
    trained_part(INPUTS)  # BatchNorm has counted
    assert not list(untrained_part(trained_part))
    random = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64)).requires_grad_(False)
    assert not list(untrained_part(nn.Sequential(random, nn.Linear(64, 2))))
    trained = backbone().requires_grad_(False)
    trained[3].weight.data[0, 0] = 2.0  # beyond the bounds of a random start
    assert not list(untrained_part(trained))
    assert not list(untrained_part(nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6)).requires_grad_(False)))  # one layer
