"""Torn pictures and masks that lie another way than their pictures are named; noise, stripes and views are not."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ocrlab.debug.instruments.step_check import checker
from ocrlab.debug.instruments.step_check.image_layout import check_images

SEED = torch.Generator().manual_seed(0)
SAMPLES = Path(__file__).parents[4] / "data_samples"


def pages() -> Tensor:
    """Return crops (N, H, W, 3) of pages as OpenCV reads them, 0..1."""
    paths = sorted(p for p in SAMPLES.rglob("*") if p.suffix in (".jpg", ".png"))[:6]
    rows = [cv2.resize(cv2.imread(str(p)), (96, 128), interpolation=cv2.INTER_AREA) for p in paths]
    return torch.from_numpy(np.stack(rows)).float() / 255


def smooth(count: int, channels: int) -> Tensor:
    """Return blobs of colours (N, H, W, C) as a camera gives them: neighbours alike, channels not."""
    coarse = torch.rand(count, channels, 5, 5, generator=SEED)
    return torch.nn.functional.interpolate(coarse, (32, 40), mode="bilinear").permute(0, 2, 3, 1).contiguous()


def findings_by_rule(*tensors: Tensor) -> dict[str, checker.Finding]:
    return {finding.rule: finding for finding in check_images([(str(i), t) for i, t in enumerate(tensors)])}


@pytest.mark.parametrize("kind", ["pages", "blobs", "blobs with alpha"])
def test_pixels_that_were_viewed_as_channels(kind: str) -> None:
    images = pages() if kind == "pages" else smooth(8, 3 if kind == "blobs" else 4)
    count, height, width, channels = images.shape
    torn = findings_by_rule(images.view(count, channels, height, width))["images.torn"]
    assert f"pixels {channels} rows away" in torn.got and "permute" in torn.do and torn.judgement == "fail"
    assert findings_by_rule(images.permute(0, 3, 1, 2)) == {}
    assert findings_by_rule(images.permute(0, 3, 1, 2).contiguous()) == {}
    assert findings_by_rule(images.permute(0, 3, 2, 1)) == {}  # lying on its side


def test_noise_stripes_and_other_channels_are_no_torn_pictures() -> None:
    rows = torch.arange(32)[:, None].expand(32, 40)
    stripes = ((rows % 3) == 0).float().expand(6, 3, 32, 40) + 0.1 * torch.randn(6, 3, 32, 40, generator=SEED)
    noise, flat = torch.randn(8, 3, 32, 32, generator=SEED), torch.zeros(8, 3, 32, 32)
    many = torch.randn(8, 16, 32, 32, generator=SEED)
    for images in (stripes, noise, flat, many, noise[:, :, :8, :8], (noise > 0).to(torch.uint8)):
        assert findings_by_rule(images) == {}


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
