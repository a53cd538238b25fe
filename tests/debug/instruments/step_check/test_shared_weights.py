"""One block under many names, a frozen part that nothing was loaded into; heads and random features are let be."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ocrlab.debug.instruments.step_check import checker
from ocrlab.debug.instruments.step_check.shared_weights import check_untrained_part

INPUTS = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))


def block() -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.ReLU())


class Stack(nn.Module):
    """Blocks one after the other, then a head."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(blocks), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def rules(model: nn.Module) -> dict[str, checker.Finding]:
    report = checker.check(model, INPUTS, lambda net, x: net(x).square().mean())
    assert report.loss is not None
    return {finding.rule: finding for finding in report.findings}


def test_the_same_block_many_times() -> None:
    finding = rules(Stack([block()] * 4))["weights.shared"]
    assert (
        finding.where == "blocks"
        and "4 entries" in finding.got
        and "216" in finding.got
        and finding.judgement == "warn"
    )
    assert "weights.shared" in rules(nn.Sequential(*[block()] * 3))


class Levels(nn.Module):
    """One head for all levels, as detectors have it, and one activation under many names."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(6, 3)] * 3)
        self.functions = nn.ModuleList([nn.ReLU()] * 3)
        self.again = block()

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(len(x), 3)
        for head, function in zip(self.heads, self.functions, strict=True):
            x = function(self.again(x))  # the same block, called again: weights that are shared on purpose
            total = total + head(x)
        return total


def test_separate_blocks_heads_and_activations_are_no_finding() -> None:
    for model in (Stack([block() for _ in range(4)]), Stack([block()]), Levels()):
        assert "weights.shared" not in rules(model)


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
    finding = rules(model)["weights.untrained"]
    assert "2 normalisations" in finding.got and "module." in finding.do and finding.judgement == "warn"
    model[0].load_state_dict(source.module.state_dict())
    assert "weights.untrained" not in rules(model)


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
