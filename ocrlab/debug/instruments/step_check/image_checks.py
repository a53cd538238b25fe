"""Images, and the boxes and masks that belong to them.

Known are the mean and deviation of ImageNet for images of 0 to 1: with them black and white of each colour become
numbers that nothing else gives. Corners are recognised by what a loss computes from the columns of boxes (N, 4): the
larger of the first two and the smaller of the last two of two boxes are the corners of their intersection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ocrlab.debug.instruments.step_check.axis_checks import LAYERS
from ocrlab.debug.instruments.step_check.findings import Finding, is_readable
from ocrlab.debug.instruments.step_check.loss_checks import SQUASHED, maker

SIDE = 16  # pixels from which on neighbours say something
COLOURS = (3, 4)
NEARER = 0.2  # by which pixels three rows away are more alike than those of the next row, in a torn picture
APART, TOGETHER = 0.2, 0.5  # correlation of a mask with its picture: has nothing to do with it, belongs to it
SAMPLES = 8  # pictures from which on a share of them says something, and of which neighbours are compared
CLASSES = 32  # values of a mask, and more of a picture
FLIPPED_SHARE = 0.15  # of the samples: those that belong together, and those that do so only when one is flipped
MOST_VALUES = 1 << 16  # that are counted, evenly spread
MOST_PIXELS = 64  # samples, and pixels of a side, that are compared

FLIPS: dict[str, Callable[[Tensor], Tensor]] = {
    "from left to right": lambda t: t.flip(-1),
    "upside down": lambda t: t.flip(-2),
    "by half a turn": lambda t: t.flip(-1, -2),
    "by a quarter turn": lambda t: t.rot90(1, (-2, -1)),
    "by a quarter turn back": lambda t: t.rot90(-1, (-2, -1)),
}
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, red green blue
FAINT = 1.00001 / 255  # the most that an image of 0..255 holds when it is divided by 255 twice
LARGE = 16.0  # mean size of an input: images of 0..255 have about 100, normalised ones 1
FLAT = 0.02  # a picture of 0..1, divided by a deviation of 0..255, spans less
LEAST_VALUES = 8  # more than a picture of 0..255 has in so small a span
WIDE = 2.0  # deviation of a picture that was divided by one twice; once gives about 1
EDGE = 2e-3  # by which black or white may miss its number

Violation = tuple[str, str, str]  # got, need, do
LARGER = frozenset("max maximum".split())
SMALLER = frozenset("min minimum".split())
MINUS = frozenset("sub __sub__ subtract".split())
PASSING = frozenset("__getitem__ clamp clamp_min view reshape squeeze unsqueeze".split())
FEW = 2  # boxes that end before they begin, from which on it is no slip of the pen
WRONG_SHARE = 0.1  # of all boxes
DEEPEST_VIEW = 8  # views of views
TIMES = frozenset("mul __mul__ __rmul__ multiply".split())
OVER = frozenset("div __truediv__ true_divide divide".split())
SUMS = ("Sum", "Add", "View", "ReshapeAlias", "Squeeze", "Unsqueeze", "Mean", "Sub")  # on the way to a divisor
SHAPES = ("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Select", "Slice", "Permute", "Transpose")
FEWEST = 64  # values of a mask
NODES = 64  # of a divisor's graph
INVERTED_SHARE = (
    0.9  # of the places that are said to be ignored, which get a gradient where the mask is the wrong way round
)
NAMES = re.compile(r"(^|[._])(ignored?|dont_care|do_not_care|void)([._]|$)")


def check_images(named: Sequence[tuple[str, Tensor]]) -> Iterator[Finding]:
    """Yield what is wrong with the pictures (N, C, H, W) of a batch, and with masks (N, H, W) or (N, 1, H, W) of it."""
    large = [(n, t.detach()) for n, t in named if t.ndim in (3, 4) and is_readable(t) and min(t.shape[-2:]) >= SIDE]
    for name, tensor in large:
        if tensor.ndim == 4 and tensor.shape[1] in COLOURS and not tensor.is_complex():
            yield from _torn(name, tensor)
    for _, tensor in large:
        for other, mask in large if tensor.ndim == 4 and len(tensor) >= SAMPLES and tensor.is_floating_point() else ():
            flat = mask[:, 0] if mask.ndim == 4 and mask.shape[1] == 1 else mask
            if flat.shape != (len(tensor), *tensor.shape[2:]) or _values(flat) > CLASSES or _values(tensor) <= CLASSES:
                continue  # two views of a picture may well be flipped apart
            yield from _flipped(tensor, other, flat)


def _values(tensor: Tensor) -> int:
    """Return how many values there are, of some of the first samples."""
    flat = tensor[:SAMPLES].flatten()
    return flat[:: (flat.numel() // MOST_VALUES) | 1].unique().numel()


def _torn(name: str, tensor: Tensor) -> Iterator[Finding]:
    """Tell of pixels (H, W, C) that were viewed as channels (C, H, W).

    In memory the next row of such a picture is C rows of the view away, and a channel's end is where the next begins.
    """
    count, channels, height, width = tensor.shape
    flat = tensor[:SAMPLES].float().reshape(min(count, SAMPLES), -1)
    near, row = _lagged(flat, width), _lagged(flat, channels * width)
    colour = _lagged(flat, height * width)
    if row > near + NEARER and row > colour + NEARER and row > TOGETHER - APART:
        got = f"pixels {channels} rows away are more alike (correlation {row:.2f}) than those of the next row"
        got += f" ({near:.2f}): the rows of a picture (H, W, {channels}) in another order"
        do = "Move the axis of the colours with permute(0, 3, 1, 2): view() only cuts the same numbers anew"
        yield Finding("images.torn", f"batch.{name}", got, "neighbours that are alike", do)


def _lagged(flat: Tensor, lag: int) -> float:
    """Return the mean correlation of rows (N, values) with themselves, so many values later."""
    a, b = flat[:, :-lag], flat[:, lag:]
    return float(_correlation(a, b).mean()) if a.shape[1] else 0.0


def _correlation(a: Tensor, b: Tensor) -> Tensor:
    """Return the correlation of each row of `a` with that of `b`, 0 where one of them does not vary."""
    a, b = a - a.mean(-1, keepdim=True), b - b.mean(-1, keepdim=True)
    size = a.norm(dim=-1) * b.norm(dim=-1)
    return torch.where(size > 0, (a * b).sum(-1) / size.clamp(min=1e-30), size.new_zeros(()))


def _flipped(images: Tensor, other: str, masks: Tensor) -> Iterator[Finding]:
    """Tell of masks of which some belong to their picture as it is, and others only to its mirror image."""
    step = max(1, min(masks.shape[-2:]) // MOST_PIXELS)
    masks = masks[:MOST_PIXELS, ::step, ::step].float()
    for channel in range(min(images.shape[1], COLOURS[0])):
        picture = images[:MOST_PIXELS, channel, ::step, ::step].float()
        own = _correlation(picture.flatten(1), masks.flatten(1)).abs()
        square = picture.shape[-1] == picture.shape[-2]
        for words, flip in FLIPS.items():
            if "quarter" in words and not square:
                continue
            turned = _correlation(flip(picture).flatten(1), masks.flatten(1)).abs()
            strays = (turned > TOGETHER) & (own < APART)
            if (
                float(strays.float().mean()) > FLIPPED_SHARE / 2
                and float((own > TOGETHER).float().mean()) > FLIPPED_SHARE
            ):
                at = int(strays.to(torch.uint8).argmax())
                got = f"of {len(own)} masks {int((own > TOGETHER).sum())} belong to their picture, and"
                got += f" {int(strays.sum())} only when it is turned {words} (sample {at}: correlation"
                got += f" {float(own[at]):.2f}, turned {float(turned[at]):.2f})"
                do = "Draw the random flip or rotation once, and do it to both"
                yield Finding("targets.flipped", f"batch.{other}", got, "masks that lie as their pictures do", do)
                return


def check_scale(came: Tensor) -> Iterator[Violation]:
    """Yield what is wrong with the size of the values that the first layer gets."""
    if came.is_floating_point() and (size := float(came.abs().float().mean())) > LARGE:
        got = f"the first layer gets values from {float(came.min()):g} to {float(came.max()):g}, {size:g} in the mean"
        yield got, "values around 1", "Normalise the input: divide images by 255, subtract the mean"
        return
    if came.ndim != 4 or not came.is_floating_point():
        return
    low, high = float(came.min()), float(came.max())
    if low >= 0 and 0 < high <= FAINT:
        got = f"the first layer gets images from {low:g} to {high:g}"
        yield got, "values around 1", "Look whether they are divided by 255 twice"
    elif came.shape[1] in (1, 3) and not came.requires_grad:
        yield from _normalised(came.float(), low, high)


def _normalised(came: Tensor, low: float, high: float) -> Iterator[Violation]:
    least, most = came.amin((0, 2, 3)), came.amax((0, 2, 3))
    span = float((most - least).max())
    if high < -1 and 0 < span <= FLAT and came[:, 0].unique().numel() > LEAST_VALUES:  # blank pages lie above
        got = f"all pictures lie between {low:.4g} and {high:.4g}, in each colour within {span:.2g}"
        do = "Look whether pictures of 0 to 1 are normalised by a mean and deviation for 0 to 255"
        yield got, "values around 0 that vary by about 1", do
        return
    if came.shape[1] != 3:
        return
    mean, deviation = (came.new_tensor(row).view(3, 1, 1) for row in (MEAN, DEVIATION))
    twice = (came * deviation + mean) * deviation + mean
    if float(came.std((0, 2, 3)).min()) > WIDE and float(twice.min()) > -FLAT and float(twice.max()) < 1 + FLAT:
        got = f"pictures from {low:.4g} to {high:.4g} are, as numbers, those of 0 to 1 normalised by ImageNet twice"
        yield got, "values around 0 that vary by about 1", "Normalise once: in the loader or in the model, not in both"
        return
    for name, ends, of in (("black", least, 0.0), ("white", most, 1.0)):
        want = ((of - mean) / deviation).flatten()
        if bool(((ends - want.flip(0)).abs() < EDGE).all()):
            got = f"{name} is {', '.join(f'{value:.3f}' for value in ends.tolist())}: the numbers of blue, green, red"
            do = "OpenCV reads blue first: turn the channels before they are normalised, image[..., ::-1]. Where the"
            do += " weights have learned that order, nothing is wrong"
            yield got, "red, green, blue as ImageNet's mean and deviation are", do
            return


class CornerWatch:
    """The boxes, not computed from weights, of which a step subtracts the larger first from the smaller last columns.

    Distances to four sides are made larger and smaller as well, but are added.
    """

    def __init__(self) -> None:
        self.derived: dict[int, tuple[Tensor, Tensor, bool]] = {}  # by id: what was made, of which boxes, of their end
        self.boxes: dict[int, Tensor] = {}

    def see(self, name: str, args: tuple[Any, ...], value: Any) -> None:
        """Note a call of a function and what it gave."""
        if name in PASSING and args and isinstance(value, Tensor) and (source := self._of(args[0])) is not None:
            self.derived[id(value)] = (value, *source)
        two = len(args) > 1 and all(isinstance(side, Tensor) for side in args[:2])
        if not two or name not in LARGER | SMALLER | MINUS:
            return
        if name in MINUS:
            end, start = self._of(args[0]), self._of(args[1])
            if end is not None and start is not None and end[0] is start[0] and end[1] and not start[1]:
                self.boxes[id(end[0])] = end[0]
        elif any(side.requires_grad for side in args[:2]) and isinstance(value, Tensor):
            for side in args[:2]:
                boxes = None if side.requires_grad else _whole(side)
                if boxes is not None and _columns(side, boxes) <= ({0, 1} if name in LARGER else {2, 3}):
                    self.derived[id(value)] = (value, boxes, name in SMALLER)

    def _of(self, tensor: Any) -> tuple[Tensor, bool] | None:
        entry = self.derived.get(id(tensor))
        return (entry[1], entry[2]) if entry is not None and entry[0] is tensor else None

    def findings(self, named: Sequence[tuple[str, Tensor]]) -> Iterator[Finding]:
        """Yield boxes that are taken for corners and end before they begin; `named` are the tensors of the batch."""
        for boxes in self.boxes.values():
            if not is_readable(boxes):
                continue
            rows = boxes.detach().reshape(-1, 4)
            wrong = (rows[:, 2] < rows[:, 0]) | (rows[:, 3] < rows[:, 1])
            count = int(wrong.sum())
            if count < FEW or count < WRONG_SHARE * len(rows):
                continue
            name = next((f"batch.{n}" for n, t in named if _same(t, boxes)), "the boxes of the loss")
            at = int(wrong.nonzero()[0])
            shown = ", ".join(f"{value:.4g}" for value in rows[at].tolist())
            got = f"the loss takes them for corners, and {count} of {len(rows)} end before they begin ({at}: {shown})"
            do = "If they are x, y, width, height or centre, width, height, convert them first (torchvision.ops."
            do += "box_convert); else order their corners. Such a box overlaps with nothing, and its area is wrong"
            yield Finding("boxes.corners", name, got, "x0, y0, x1, y1 with x0 < x1 and y0 < y1", do)
            return


def _whole(side: Tensor) -> Tensor | None:
    """Return the boxes (..., 4) that columns were cut from, None where they are no view of such."""
    base: Tensor | None = side
    for _ in range(DEEPEST_VIEW):
        base = None if base is None else base._base
        if base is None:
            return None
        if base.ndim and base.shape[-1] == 4 and base.stride(-1) == 1 and base.is_floating_point():
            return base
    return None


def _columns(side: Tensor, boxes: Tensor) -> set[int]:
    """Return which columns of some boxes a view holds: one, or two beside each other."""
    first = int(side.storage_offset() - boxes.storage_offset()) % 4
    two = side.ndim > 0 and side.shape[-1] == 2 and side.stride(-1) == 1 and side.numel() > 1
    return {first, first + 1} if two else {first}


def _same(first: Tensor, second: Tensor) -> bool:
    return first is second or (
        is_readable(first) and first.shape == second.shape and first.data_ptr() == second.data_ptr()
    )


class MaskWatch:
    """The products with masks and the quotients of a loss; `inside` tells whether a module is running."""

    def __init__(self, findings: list[Finding], place: Callable[[], str], inside: Callable[[], bool]) -> None:
        self.findings, self.place, self.inside = findings, place, inside
        self.raw: dict[Any, tuple[Tensor, float]] = {}  # by node that made it: logits that a mask was multiplied with

    def see(self, name: str, args: tuple[Any, ...]) -> None:
        """Look at a function of two tensors."""
        if name not in TIMES | OVER or len(args) < 2 or self.inside():
            return
        first, second = args[:2]
        if not isinstance(first, Tensor) or not isinstance(second, Tensor):
            return
        if name in OVER:
            self._over(second)
        elif first.requires_grad != second.requires_grad:
            self._times(*((first, second) if first.requires_grad else (second, first)))

    def _times(self, values: Tensor, mask: Tensor) -> None:
        if values.shape != mask.shape or mask.numel() < FEWEST or not is_readable(values) or not is_readable(mask):
            return
        mask_values, low, high = mask.detach(), float(values.detach().min()), float(values.detach().max())
        least, most = float(mask_values.min()), float(mask_values.max())
        if least != 0 or most not in (1, 255) or not bool(((mask_values == 0) | (mask_values == most)).all()):
            return
        rules = {each.rule for each in self.findings}
        if most == 255 and maker(values) in SQUASHED and "targets.bytes" not in rules:
            got = f"a mask of 0 and 255, multiplied with probabilities ({low:.3g} to {high:.3g})"
            do = "Divide the mask by 255, or compare it: (mask > 127).float()"
            self.findings.append(Finding("targets.bytes", self.place(), got, "a mask of 0 and 1", do, "warn"))
        elif most == 1 and low < 0 and (node := _layer(values)) is not None:
            self.raw[node] = (values, low)

    def _over(self, divisor: Tensor) -> None:
        """Tell of a quotient whose divisor sums up logits that a mask was multiplied with."""
        if not self.raw or not divisor.requires_grad:
            return
        waiting, visited = [divisor.grad_fn], 0
        while waiting and visited < NODES:
            node, visited = waiting.pop(0), visited + 1
            if node is None:
                continue
            if node in self.raw:
                _, low = self.raw.pop(node)
                got = f"an overlap with a mask (Dice, IoU) of what a layer gave as it is, from {low:.3g} on: its"
                got += " divisor may be 0 or negative"
                do = "Take .sigmoid() (one class) or .softmax(1) (several) of the model's output first"
                self.findings.append(Finding("loss.overlap", self.place(), got, "probabilities", do))
                return
            if _named(node, (*SUMS, *SHAPES)):
                waiting += [before for before, _ in node.next_functions]


def check_inverted_mask(outputs: Sequence[Tensor], named: Sequence[tuple[str, Tensor]]) -> Iterator[Finding]:
    """Yield a mask of what is to be ignored, of which nothing else is learned; `given` by the model, with gradients."""
    masks = [(name, t) for name, t in named if NAMES.search(name.lower()) and is_readable(t)]
    for output in outputs:
        for name, mask in masks if output.grad is not None and output.ndim == 4 and is_readable(output.grad) else ():
            marked = mask.detach()[:, 0] if mask.ndim == 4 and mask.shape[1] == 1 else mask.detach()
            if marked.shape != (len(output), *output.shape[2:]) or not bool(((marked == 0) | (marked == 1)).all()):
                continue
            assert output.grad is not None
            pushed, marked = output.grad.detach().abs().sum(1) > 0, marked.bool().to(output.device)
            if not bool(marked.any()) or bool(marked.all()) or bool(pushed[~marked].any()):
                continue
            if (
                float(pushed[marked].float().mean()) >= INVERTED_SHARE
            ):  # some call `ignore` what is 0 where it is ignored
                got = f"only what batch.{name} marks gets a gradient ({float(marked.float().mean()):.0%} of the places)"
                do = "Turn the mask round: 1 - mask, ~mask. If its 1 means that a place counts, nothing is wrong"
                yield Finding("loss.ignored", "the loss", got, "a loss of all other places", do, "warn")
                return


def _layer(tensor: Tensor) -> Any:
    """Return the node of a tensor that a layer made, past what only changes its shape; None for any other."""
    start = node = tensor.grad_fn
    for _ in range(NODES):
        if node is None:
            return None
        if node.name() in LAYERS or "Upsample" in node.name():
            return start
        if not _named(node, SHAPES):
            return None
        node = node.next_functions[0][0]
    return None


def _named(node: torch.autograd.graph.Node, names: Sequence[str]) -> bool:
    return node.name().rstrip("0123456789").removesuffix("Backward") in names
