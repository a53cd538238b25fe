"""Words of findings: what to do about an index out of bounds, and where in the batch it came from."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ocrlab.debug.instruments.step_check import checker
from tests.debug.instruments.step_check.test_forward_pass import classes, finding_of


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
