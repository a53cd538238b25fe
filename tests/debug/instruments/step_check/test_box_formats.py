"""Boxes in a loss of their overlap: corners are right, a width where a corner is meant is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ocrlab.debug.instruments.step_check import checker
from tests.debug.instruments.step_check.test_forward_pass import finding_of, rules


def draw(number: int) -> Tensor:
    return torch.rand(16, 2, generator=torch.Generator().manual_seed(number))


FIRST = draw(0) * 0.6
CORNERS = torch.cat([FIRST, FIRST + draw(1) * 0.3 + 0.05], 1)
SIZES = torch.cat([FIRST, CORNERS[:, 2:] - FIRST], 1)
CENTRES = torch.cat([(FIRST + CORNERS[:, 2:]) / 2, CORNERS[:, 2:] - FIRST], 1)
IMAGES = torch.randn(16, 6, generator=torch.Generator().manual_seed(2))
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


def check(overlap: Overlap, boxes: Tensor) -> checker.Report:
    torch.manual_seed(0)
    batch = {"image": IMAGES, "boxes": boxes}
    return checker.check(Net(), batch, lambda net, values: (1 - overlap(net(values["image"]), values["boxes"])).mean())


@pytest.mark.parametrize("overlap", [giou, by_columns, all_with_all])
@pytest.mark.parametrize("boxes", [SIZES, CENTRES], ids=["sizes", "centres"])
def test_a_width_where_a_corner_is_meant(overlap: Overlap, boxes: Tensor) -> None:
    finding = finding_of(check(overlap, boxes), "boxes.corners")
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
    assert "boxes.corners" not in rules(check(overlap, boxes))


def test_boxes_that_fill_a_batch_up_are_no_fault() -> None:
    boxes = CORNERS.clone()
    boxes[10:] = 0
    assert "boxes.corners" not in rules(check(giou, boxes))
    boxes[10:] = -1
    assert "boxes.corners" not in rules(check(giou, boxes))


def test_boxes_of_torchvision_and_boxes_that_the_loss_makes() -> None:
    ops = pytest.importorskip("torchvision.ops")
    assert "boxes.corners" in rules(check(lambda a, b: 1 - ops.complete_box_iou_loss(a, b), CENTRES))
    assert "boxes.corners" not in rules(check(lambda a, b: 1 - ops.complete_box_iou_loss(a, b), CORNERS))
    finding = finding_of(check(lambda a, b: giou(a, b * 64), SIZES), "boxes.corners")
    assert finding.where == "the boxes of the loss"
