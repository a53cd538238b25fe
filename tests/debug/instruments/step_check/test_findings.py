"""Findings: what is named, how, and with which advice."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ocrlab.debug.instruments.step_check import checker
from tests.debug.instruments.step_check.helpers import classes, finding_of


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
    report = checker.check(Attends(), {"x": torch.randn(3, 5, 8), "mask": mask}, loss)
    assert not any("finite" in finding.rule for finding in report.findings), str(report)


def test_zeros_with_a_single_inf_are_no_mask_elsewhere() -> None:
    x = torch.zeros(3, 5, 8)
    x[1, 2, 3] = -math.inf
    report = checker.check(Attends(), {"x": x, "mask": torch.zeros(3, 5)}, loss)
    [batch_finding] = [finding for finding in report.findings if finding.rule == "batch.finite"]
    assert "x" in batch_finding.where and "-inf" in batch_finding.got
    model = nn.BatchNorm1d(4)
    assert model.running_mean is not None
    model.running_mean[1] = -math.inf
    report = checker.check(model, torch.randn(3, 4), lambda m, b: m(b).square().mean())
    assert "weights.finite" in {finding.rule for finding in report.findings}


def test_an_update_that_is_lost_in_rounding_fails_only_where_every_weight_stays() -> None:
    """A small rate, as in a warm-up, moves some weights by less than float32 holds."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), torch.randn(3, 4)
    with torch.no_grad():
        model[1].weight.fill_(1e6)
        model[0].weight.fill_(1e-6)
    step = torch.optim.SGD(model.parameters(), 1e-7)
    report = checker.check(model, x, lambda m, b: m(b).mean() * 1e-3, optimizer=step)
    assert {f.judgement for f in report.findings if f.rule == "weights.still"} == {"warn"} and report.ok
    nothing = torch.optim.SGD(model.parameters(), 1e-30)
    report = checker.check(model, x, lambda m, b: m(b).mean() * 1e-3, optimizer=nothing)
    assert {f.judgement for f in report.findings if f.rule == "weights.still"} == {"fail"} and not report.ok


def test_findings_of_the_same_rule_and_remedy_share_a_line() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    report = checker.check(model, (torch.full((8, 8), torch.nan), torch.zeros(8, 3)), nn.functional.mse_loss)
    assert len([f for f in report.findings if f.rule == "gradient.finite"]) == 4
    assert str(report).count("gradient.finite") == 1
    [others] = [line.split() for line in str(report).splitlines() if "also at" in line]
    assert others == ["also", "at", "0.bias[0],", "2.weight[0,", "0],", "2.bias[0]"]


def test_the_head_of_a_report_counts_as_people_do() -> None:
    good = checker.check(nn.Linear(8, 3), (torch.randn(8, 8), torch.randn(8, 3)), nn.functional.mse_loss)
    assert str(good).startswith("no findings, 1 module, loss ")


def test_a_batch_without_a_sample_is_reported_but_not_an_empty_tensor() -> None:
    def loss(net: nn.Module, batch: list[Tensor]) -> Tensor:
        return net(batch[0]).square().mean()

    def rules(*batch: Tensor) -> list[str]:
        return [finding.rule for finding in checker.check(nn.Linear(3, 1), list(batch), loss).findings]

    assert rules(torch.ones(0, 3), torch.ones(0))[0] == "batch.empty"
    assert "batch.empty" not in rules(torch.ones(2, 3), torch.ones(0, 4))  # a page without boxes


@pytest.mark.parametrize(("label", "advice"), [(-1, "ignore_index=-1"), (255, "ignore_index=255"), (3, "")])
def test_a_label_that_may_mean_nothing_gets_advice_to_ignore_it(label: int, advice: str) -> None:
    labels = torch.tensor([0, 1, label, 2, 0, 1, 2, label])
    report = checker.check(nn.Linear(8, 3), (torch.randn(8, 8), labels), classes)
    assert ("ignore_index" in finding_of(report, "indices.bounds").do) == bool(advice)
    assert (
        advice in finding_of(report, "indices.bounds").do
        and "number of classes" in finding_of(report, "indices.bounds").do
    )


def test_numbers_that_begin_at_1_get_their_own_advice() -> None:
    report = checker.check(nn.Linear(8, 3), (torch.randn(4, 8), torch.tensor([1, 2, 3, 1])), classes)
    assert finding_of(report, "indices.bounds").do.startswith("They go from 1 to 3: subtract 1")


def test_onehot_targets_of_whole_numbers() -> None:
    hot = functional.one_hot(torch.tensor([0, 1, 2, 1]), 3)
    assert (
        ".argmax(1)" in finding_of(checker.check(nn.Linear(8, 3), (torch.randn(4, 8), hot), classes), "step.raised").do
    )
    assert checker.check(nn.Linear(8, 3), (torch.randn(4, 8), hot.float()), classes).ok


def test_a_token_that_is_not_in_the_vocabulary_is_no_label() -> None:
    report = checker.check(nn.Embedding(20, 4), torch.tensor([[0, 2, 20]]), lambda model, ids: model(ids).sum())
    assert "num_embeddings" in finding_of(report, "indices.bounds").do


def both(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return model(batch[1] + 0).sum()  # type: ignore[no-any-return]


def test_the_tensor_of_the_batch_in_which_a_wrong_index_stands() -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, list[dict[str, Tensor]]]) -> Tensor:
        return functional.cross_entropy(model(batch[0]), torch.cat([target["labels"] for target in batch[1]]))

    targets = [{"labels": torch.tensor([0, 1])}, {"labels": torch.tensor([2, 7])}]
    finding = finding_of(checker.check(nn.Linear(8, 3), (torch.randn(4, 8), targets), loss), "indices.bounds")
    assert finding.got.endswith("it stands in batch.1.1.labels[1]")
    looked = checker.check(nn.Embedding(4, 2), [torch.tensor([4, 1]), torch.tensor([2, 4])], both)
    assert finding_of(looked, "indices.bounds").got.endswith(
        "it stands in batch.1[1]"
    )  # the one that is equal as a whole
    targets[0]["labels"][0] = 7  # in two samples
    finding = finding_of(checker.check(nn.Linear(8, 3), (torch.randn(4, 8), targets), loss), "indices.bounds")
    assert finding.got.endswith("it stands in batch.1.0.labels[0] and 1 more")
    targets[0]["sizes"] = torch.tensor([7])  # in something else too: which of them is meant is not known
    finding = finding_of(checker.check(nn.Linear(8, 3), (torch.randn(4, 8), targets), loss), "indices.bounds")
    assert "stands in" not in finding.got


def test_whole_numbers_for_a_loss_of_probabilities() -> None:
    report = checker.check(
        nn.Linear(8, 3), (torch.randn(4, 8), torch.ones(4, 3).long()), functional.binary_cross_entropy_with_logits
    )
    assert ".float()" in finding_of(report, "step.raised").do


@pytest.mark.parametrize(
    ("image", "target", "advice"),
    [
        ((2, 3, 8, 12), torch.zeros(2, 12, 8).long(), "Height and width of one are exchanged"),
        ((2, 8, 12, 3), torch.zeros(2, 8, 12).long(), ".permute(0, 3, 1, 2)"),
        ((2, 3, 8, 12), torch.zeros(2, 8, 12), ".long()"),
        ((2, 3, 8, 12), torch.zeros(2, 8, 10).long(), "Look at the line that is named"),
    ],
)
def test_what_to_do_about_sizes_and_types_that_do_not_fit(image: tuple[int, ...], target: Tensor, advice: str) -> None:
    report = checker.check(nn.Conv2d(3, 2, 1), (torch.rand(image), target), classes)
    assert advice in finding_of(report, "step.raised").do
