"""Images, boxes and masks: what is named, and what is let alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

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
Loss = Callable[[nn.Module, dict[str, Tensor]], Tensor]


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


def draw(number: int) -> Tensor:
    return torch.rand(16, 2, generator=torch.Generator().manual_seed(number))


FIRST = draw(0) * 0.6
CORNERS = torch.cat([FIRST, FIRST + draw(1) * 0.3 + 0.05], 1)
SIZES = torch.cat([FIRST, CORNERS[:, 2:] - FIRST], 1)
CENTRES = torch.cat([(FIRST + CORNERS[:, 2:]) / 2, CORNERS[:, 2:] - FIRST], 1)
BOX_IMAGES = torch.randn(16, 6, generator=torch.Generator().manual_seed(2))
Overlap = Callable[[Tensor, Tensor], Tensor]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        centre, size = self.last(x).sigmoid().chunk(2, 1)
        return torch.cat([centre - size / 2, centre + size / 2], 1)


def area(boxes: Tensor) -> Tensor:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def giou(a: Tensor, b: Tensor) -> Tensor:
    size = (torch.min(a[:, 2:], b[:, 2:]) - torch.max(a[:, :2], b[:, :2])).clamp(min=0)
    around = (torch.max(a[:, 2:], b[:, 2:]) - torch.min(a[:, :2], b[:, :2])).clamp(min=0).prod(1)
    shared = size.prod(1)
    union = area(a) + area(b) - shared
    return shared / union.clamp(min=1e-6) - (around - union) / around.clamp(min=1e-6)


def by_columns(a: Tensor, b: Tensor) -> Tensor:
    x0, y0, x1, y1 = b.unbind(-1)
    left, top = torch.maximum(a[:, 0], x0), torch.maximum(a[:, 1], y0)
    right, bottom = torch.minimum(a[:, 2], x1), torch.minimum(a[:, 3], y1)
    shared = (right - left).clamp(min=0) * (bottom - top).clamp(min=0)
    return shared / (area(a) + (x1 - x0) * (y1 - y0) - shared).clamp(min=1e-6)


def all_with_all(a: Tensor, b: Tensor) -> Tensor:
    size = torch.min(a[:, None, 2:], b[:, 2:]) - torch.max(a[:, None, :2], b[:, :2])
    shared = size.clamp(min=0).prod(2)
    return (shared / (area(a)[:, None] + area(b) - shared).clamp(min=1e-6)).max(1).values


def converted(a: Tensor, b: Tensor) -> Tensor:
    return giou(a, torch.cat([b[:, :2], b[:, :2] + b[:, 2:]], 1))


def of_sizes(a: Tensor, b: Tensor) -> Tensor:
    """Overlap of x, y, width, height, as it is written for these."""
    left, right = torch.max(a[:, :2], b[:, :2]), torch.min(a[:, :2] + a[:, 2:], b[:, :2] + b[:, 2:])
    shared = (right - left).clamp(min=0).prod(1)
    return shared / (a[:, 2:].prod(1) + b[:, 2:].prod(1) - shared).clamp(min=1e-6)


def of_sides(a: Tensor, b: Tensor) -> Tensor:
    """Overlap of distances to the left, upper, right and lower side, as FCOS and EAST write it."""
    shared = (torch.min(a[:, 0], b[:, 0]) + torch.min(a[:, 2], b[:, 2])) * (
        torch.min(a[:, 1], b[:, 1]) + torch.min(a[:, 3], b[:, 3])
    )
    around = (torch.max(a[:, 0], b[:, 0]) + torch.max(a[:, 2], b[:, 2])) * (
        torch.max(a[:, 1], b[:, 1]) + torch.max(a[:, 3], b[:, 3])
    )
    return shared / around.clamp(min=1e-6)


def of_anchors(a: Tensor, b: Tensor) -> Tensor:
    return torch.min(a[:, 2:], b[:, 2:]).prod(1) / torch.max(a[:, 2:], b[:, 2:]).prod(1).clamp(min=1e-6)


def check_boxes(overlap: Overlap, boxes: Tensor) -> checker.Report:
    torch.manual_seed(0)
    batch = {"image": BOX_IMAGES, "boxes": boxes}
    return checker.check(Net(), batch, lambda net, values: (1 - overlap(net(values["image"]), values["boxes"])).mean())


@pytest.mark.parametrize("overlap", [giou, by_columns, all_with_all])
@pytest.mark.parametrize("boxes", [SIZES, CENTRES], ids=["sizes", "centres"])
def test_a_width_where_a_corner_is_meant(overlap: Overlap, boxes: Tensor) -> None:
    finding = finding_of(check_boxes(overlap, boxes), "boxes.corners")
    assert (
        finding.where == "batch.boxes" and "of 16 end before they begin" in finding.got and "box_convert" in finding.do
    )


@pytest.mark.parametrize(
    ("overlap", "boxes"),
    [
        (giou, CORNERS),
        (by_columns, CORNERS),
        (all_with_all, CORNERS),
        (converted, SIZES),
        (of_sizes, SIZES),
        (of_sides, draw(3).repeat(1, 2)),
        (of_sides, SIZES),
        (of_anchors, SIZES),
    ],
)
def test_boxes_as_they_are_meant(overlap: Overlap, boxes: Tensor) -> None:
    assert "boxes.corners" not in rules(check_boxes(overlap, boxes))


def test_boxes_that_fill_a_batch_up_are_no_fault() -> None:
    boxes = CORNERS.clone()
    boxes[10:] = 0
    assert "boxes.corners" not in rules(check_boxes(giou, boxes))
    boxes[10:] = -1
    assert "boxes.corners" not in rules(check_boxes(giou, boxes))


def test_boxes_of_torchvision_and_boxes_that_the_loss_makes() -> None:
    ops = pytest.importorskip("torchvision.ops")
    assert "boxes.corners" in rules(check_boxes(lambda a, b: 1 - ops.complete_box_iou_loss(a, b), CENTRES))
    assert "boxes.corners" not in rules(check_boxes(lambda a, b: 1 - ops.complete_box_iou_loss(a, b), CORNERS))
    finding = finding_of(check_boxes(lambda a, b: giou(a, b * 64), SIZES), "boxes.corners")
    assert finding.where == "the boxes of the loss"


def check_masks(loss: Loss, last: nn.Module | None = None, **more: Tensor) -> checker.Report:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1), last or nn.Identity())
    return checker.check(model, {"image": MASKED_IMAGES, "mask": MASK, "ignore": IGNORED} | more, loss)


def dice(p: Tensor, t: Tensor) -> Tensor:
    return 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)


def iou(p: Tensor, t: Tensor) -> Tensor:
    both = (p * t).flatten(1).sum(1)
    return (1 - both / (p.flatten(1).sum(1) + t.flatten(1).sum(1) - both)).mean()


def pixels(net: nn.Module, b: dict[str, Tensor]) -> Tensor:
    return functional.binary_cross_entropy_with_logits(net(b["image"]), b["mask"], reduction="none")


@pytest.mark.parametrize("overlap", [dice, iou])
def test_an_overlap_of_logits(overlap: Callable[[Tensor, Tensor], Tensor]) -> None:
    finding = finding_of(check_masks(lambda net, b: overlap(net(b["image"]), b["mask"])), "loss.overlap")
    assert "sigmoid" in finding.do and finding.judgement == "fail"
    assert "loss.overlap" in rules(
        check_masks(lambda net, b: overlap(net(b["image"]), b["mask"]), nn.Upsample(size=16))
    )
    assert rules(check_masks(lambda net, b: overlap(net(b["image"]).sigmoid(), b["mask"]))) == set()
    assert rules(check_masks(lambda net, b: overlap(net(b["image"]), b["mask"]), nn.Sigmoid())) == set()


@pytest.mark.parametrize(
    "loss",
    [
        lambda net, b: (lambda z: (z.relu() - z * b["mask"] + (-z.abs()).exp().log1p()).mean())(net(b["image"])),
        lambda net, b: (net(b["image"]) * b["mask"]).sum().square() / b["mask"].sum(),
        lambda net, b: ((net(b["image"]) - b["image"][:, :1]).square() * b["mask"]).sum() / b["mask"].sum(),
        lambda net, b: (lambda z: (z * b["mask"]).sum().square() / (z.square().sum() + 1))(net(b["image"])),
    ],
    ids=["cross entropy by hand", "a mean", "a distance", "a norm"],
)
def test_logits_beside_a_mask_may_be_meant(loss: Loss) -> None:
    assert "loss.overlap" not in rules(check_masks(loss))


def test_a_mask_of_bytes() -> None:
    finding = finding_of(
        check_masks(lambda net, b: dice(net(b["image"]).sigmoid(), b["mask"]), mask=MASK * 255), "targets.bytes"
    )
    assert "255" in finding.do and finding.judgement == "warn"
    weighed = check_masks(lambda net, b: (pixels(net, b) * b["weight"]).sum() / b["weight"].sum(), weight=MASK * 255)
    assert rules(weighed) == set()
    divided = check_masks(lambda net, b: dice(net(b["image"]).sigmoid(), b["mask"] / 255), mask=MASK * 255)
    assert rules(divided) == set()


def test_a_mask_of_what_is_ignored_that_is_turned() -> None:
    finding = finding_of(
        check_masks(lambda net, b: (pixels(net, b) * b["ignore"]).sum() / b["ignore"].sum()), "loss.ignored"
    )
    assert "25% of the places" in finding.got and "1 - mask" in finding.do and finding.judgement == "warn"
    assert rules(check_masks(lambda net, b: (pixels(net, b) * (1 - b["ignore"])).mean())) == set()
    assert rules(check_masks(lambda net, b: pixels(net, b)[b["ignore"] == 0].mean())) == set()
    assert rules(check_masks(lambda net, b: pixels(net, b).mean())) == set(), "it is not used: a loss of its own choice"
    report = check_masks(lambda net, b: (pixels(net, b) * b["valid"]).mean(), valid=1 - IGNORED, avoid=1 - IGNORED)
    assert rules(report) == set()
