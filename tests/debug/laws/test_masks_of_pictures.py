"""Images and masks: what is named, and what is let alone."""

import torch
from torch import Tensor, nn

from ocrlab.debug.laws.result import Result
from tests.debug.laws.helpers import check

SEED = torch.Generator().manual_seed(0)


def findings_by_rule(*tensors: Tensor) -> dict[str, Result]:
    report = check(nn.Linear(1, 1), tensors, lambda net, _: net(torch.ones(1, 1)).square().mean())
    return {finding.rule: finding for finding in report.findings}


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
    report = check(nn.Conv2d(1, 1, 3, padding=1), (images, masks[:, None]), loss)
    assert "targets.flipped" in {finding.rule for finding in report.findings}
