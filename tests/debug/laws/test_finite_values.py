"""Findings: what is named, how, and with which advice."""

import math

import torch
from torch import Tensor, nn

from tests.debug.laws.helpers import check


class Attends(nn.Module):
    """Attention under two masks: one of the batch, one that it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(5))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.block(x, src_mask=self.causal, src_key_padding_mask=mask)  # type: ignore[no-any-return]


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return model(batch["x"], batch["mask"]).square().mean()  # type: ignore[no-any-return]


def test_masks_are_meant() -> None:
    mask = torch.zeros(3, 5)
    mask[2, 3:] = -math.inf
    report = check(Attends(), {"x": torch.randn(3, 5, 8), "mask": mask}, loss)
    assert not any("finite" in finding.rule for finding in report.findings), str(report)


def test_zeros_with_a_single_inf_are_no_mask_elsewhere() -> None:
    x = torch.zeros(3, 5, 8)
    x[1, 2, 3] = -math.inf
    report = check(Attends(), {"x": x, "mask": torch.zeros(3, 5)}, loss)
    [batch_finding] = [finding for finding in report.findings if finding.rule == "batch.finite"]
    assert "x" in batch_finding.where and "-inf" in batch_finding.got


def test_an_update_that_is_lost_in_rounding_fails_only_where_every_weight_stays() -> None:
    """A small rate, as in a warm-up, moves some weights by less than float32 holds."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), torch.randn(3, 4)
    with torch.no_grad():
        model[1].weight.fill_(1e6)
        model[0].weight.fill_(1e-6)
    step = torch.optim.SGD(model.parameters(), 1e-7)
    report = check(model, x, lambda m, b: m(b).mean() * 1e-3, optimizer=step)
    assert {f.judgement for f in report.findings if f.rule == "weights.still"} == {"warn"} and report.ok
    nothing = torch.optim.SGD(model.parameters(), 1e-30)
    report = check(model, x, lambda m, b: m(b).mean() * 1e-3, optimizer=nothing)
    assert {f.judgement for f in report.findings if f.rule == "weights.still"} == {"fail"} and not report.ok
