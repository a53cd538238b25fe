"""Images, boxes and masks: what is named, and what is let alone."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ocrlab.debug.instruments.step_check import checker
from ocrlab.debug.instruments.step_check.image_checks import DEVIATION, MEAN, check_images, check_scale
from tests.debug.instruments.step_check.helpers import finding_of, rules

SEED = torch.Generator().manual_seed(0)
SAMPLES = Path(__file__).parents[4] / "data_samples"
M, D = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(DEVIATION).view(3, 1, 1)
MASKED_IMAGES = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
MASK = (MASKED_IMAGES.mean(1, keepdim=True) > 0.5).float()
IGNORED = torch.zeros_like(MASK)
IGNORED[:, :, :4] = 1


def pages() -> Tensor:
    """Return crops (N, H, W, 3) of pages as OpenCV reads them, 0..1."""
    paths = sorted(p for p in SAMPLES.rglob("*") if p.suffix in (".jpg", ".png"))[:6]
    rows = [cv2.resize(cv2.imread(str(p)), (96, 128), interpolation=cv2.INTER_AREA) for p in paths]
    return torch.from_numpy(np.stack(rows)).float() / 255


def findings_by_rule(*tensors: Tensor) -> dict[str, checker.Finding]:
    return {finding.rule: finding for finding in check_images([(str(i), t) for i, t in enumerate(tensors)])}


def scenes(count: int = 24) -> tuple[Tensor, Tensor]:
    """Return pictures (N, 1, H, W) of a bright square each, and its mask."""
    masks = torch.zeros(count, 32, 32)
    for mask, (x, y) in zip(masks, torch.randint(1, 20, (count, 2), generator=SEED).tolist(), strict=True):
        mask[y : y + 9, x : x + 9] = 1
    return masks[:, None] + 0.4 * torch.randn(count, 1, 32, 32, generator=SEED), masks


def test_masks_that_were_not_flipped_with_their_picture() -> None:
    images, masks = scenes()
    flipped = images.clone()
    flipped[::2] = flipped[::2].flip(-1)
    for flipped_masks in (masks.long(), masks[:, None], masks.bool()):
        assert "from left to right" in findings_by_rule(flipped, flipped_masks)["targets.flipped"].got
    turned = torch.cat([images[:12].rot90(1, (-2, -1)), images[12:]])
    finding = findings_by_rule(turned, masks.long())["targets.flipped"]
    assert "batch.1" in finding.where and "quarter turn" in finding.got and finding.judgement == "fail"


def test_masks_that_belong_views_and_other_objects_are_no_finding() -> None:
    images, masks = scenes()
    other, _ = scenes()
    assert findings_by_rule(images, masks.long()) == {}
    assert findings_by_rule(images + other.flip(-1), masks.long()) == {}  # more in the picture than the mask marks
    assert findings_by_rule(torch.randn(24, 1, 32, 32, generator=SEED), masks.long()) == {}  # nothing of it can be seen
    assert findings_by_rule(images, images.flip(-1)) == {}  # two views of a picture
    mixed = torch.cat([images[:12], images[12:].flip(-1)])
    assert findings_by_rule(images, mixed) == {} and findings_by_rule(images[:4], masks[:4]) == {}
    assert findings_by_rule((images > 0.5).float(), (mixed > 0.5).float()) == {}  # two views of black and white


def test_a_check_of_a_step_says_it() -> None:
    images, masks = scenes()
    images[::2] = images[::2].flip(-2)
    loss = nn.BCEWithLogitsLoss()
    report = checker.check(nn.Conv2d(1, 1, 3, padding=1), (images, masks[:, None]), loss)
    assert "targets.flipped" in {finding.rule for finding in report.findings}


def uniform_images(low: float = 0.0, high: float = 1.0) -> Tensor:
    """Return pictures (4, 3, 32, 32) in which some pixels are the lowest and some the highest."""
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)) * (high - low) + low
    images[:, :, 0], images[:, :, 1] = low, high
    return images


@pytest.mark.parametrize(
    ("images", "advice"),
    [
        (uniform_images() * 255, "divide images by 255"),
        (uniform_images() / 255, "divided by 255 twice"),
        ((uniform_images() - M * 255) / (D * 255), "mean and deviation for 0 to 255"),
        ((uniform_images()[:, :1] - 127) / 58, "mean and deviation for 0 to 255"),
        (((uniform_images() - M) / D - M) / D, "Normalise once"),
        (((uniform_images() - M) / D).flip(1), "OpenCV reads blue first"),
        (((uniform_images(0.2) - M) / D).flip(1), "OpenCV reads blue first"),  # no black, and white
    ],
)
def test_pictures_that_are_normalised_wrongly(images: Tensor, advice: str) -> None:
    [(_, _, do)] = check_scale(images)
    assert advice in do


@pytest.mark.parametrize(
    "images",
    [
        uniform_images(),
        (uniform_images() - M) / D,
        (uniform_images() * 255 - M * 255) / (D * 255),
        uniform_images() * 2 - 1,
        (uniform_images(0.3, 0.6) - M) / D,
        (uniform_images() - uniform_images().mean()) / uniform_images().std() * 1.5,
        (torch.ones(4, 3, 32, 32) - M) / D,  # blank pages
        torch.full((4, 1, 32, 32), 2.4) + torch.rand(4, 1, 32, 32) * 0.0171,  # next to blank
        torch.zeros(4, 3, 32, 32),
        (uniform_images()[:, :1].repeat(1, 3, 1, 1) - M) / D,  # grey
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
    report = checker.check(model, ((uniform_images() - M) / D - M) / D, loss)
    assert (
        finding_of(report, "input.scale").where == "0 (Conv2d)"
        and finding_of(report, "input.scale").judgement == "warn"
    )
    assert "input.scale" not in rules(checker.check(model, (uniform_images() - M) / D, loss))
