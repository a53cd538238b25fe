"""Pictures as the first layer gets them: normalised once and for their range is right, all else is named."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ocrlab.debug.instruments.step_check import checker
from ocrlab.debug.instruments.step_check.normalisation import DEVIATION, MEAN, check_scale
from tests.debug.instruments.step_check.test_forward_pass import finding_of, rules

M, D = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(DEVIATION).view(3, 1, 1)


def pages(low: float = 0.0, high: float = 1.0) -> Tensor:
    """Return pictures (4, 3, 32, 32) in which some pixels are the lowest and some the highest."""
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * (high - low) + low
    images[:, :, 0], images[:, :, 1] = low, high
    return images


@pytest.mark.parametrize(
    ("images", "advice"),
    [
        (pages() * 255, "divide images by 255"),
        (pages() / 255, "divided by 255 twice"),
        ((pages() - M * 255) / (D * 255), "mean and deviation for 0 to 255"),
        ((pages()[:, :1] - 127) / 58, "mean and deviation for 0 to 255"),
        (((pages() - M) / D - M) / D, "Normalise once"),
        (((pages() - M) / D).flip(1), "OpenCV reads blue first"),
        (((pages(0.2) - M) / D).flip(1), "OpenCV reads blue first"),  # no black, and white
    ],
)
def test_pictures_that_are_normalised_wrongly(images: Tensor, advice: str) -> None:
    [(_, _, do)] = check_scale(images)
    assert advice in do


@pytest.mark.parametrize(
    "images",
    [
        pages(),
        (pages() - M) / D,
        (pages() * 255 - M * 255) / (D * 255),
        pages() * 2 - 1,
        (pages(0.3, 0.6) - M) / D,
        (pages() - pages().mean()) / pages().std() * 1.5,
        (torch.ones(4, 3, 32, 32) - M) / D,  # blank pages
        torch.full((4, 1, 32, 32), 2.4) + torch.rand(4, 1, 32, 32) * 0.0171,  # next to blank
        torch.zeros(4, 3, 32, 32),
        (pages()[:, :1].repeat(1, 3, 1, 1) - M) / D,  # grey
        torch.randn(4, 3, 32, 32) * 3,  # noise of a size
    ],
)
def test_pictures_as_they_may_be(images: Tensor) -> None:
    assert list(check_scale(images)) == []


def test_only_the_first_layer_is_asked() -> None:
    def loss(net: nn.Module, batch: Tensor) -> Tensor:
        answer: Tensor = net(batch).square().mean()
        return answer

    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 4, 3))
    report = checker.check(model, ((pages() - M) / D - M) / D, loss)
    assert (
        finding_of(report, "input.scale").where == "0 (Conv2d)"
        and finding_of(report, "input.scale").judgement == "warn"
    )
    assert "input.scale" not in rules(checker.check(model, (pages() - M) / D, loss))
