"""Pictures and what belongs to them: axes that a view has torn, masks that were not flipped with their picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ocrlab.debug.instruments.step_check.findings import Finding, is_readable

SIDE = 16  # pixels from which on neighbours say something
COLOURS = (3, 4)
NEARER = 0.2  # by which pixels three rows away are more alike than those of the next row, in a torn picture
APART, TOGETHER = 0.2, 0.5  # correlation of a mask with its picture: has nothing to do with it, belongs to it
SAMPLES = 8  # pictures from which on a share of them says something, and of which neighbours are compared
CLASSES = 32  # values of a mask, and more of a picture
SHARE = 0.15  # of the samples: those that belong together, and those that do so only when one is flipped
VALUES = 1 << 16  # that are counted, evenly spread
MOST = 64  # samples, and pixels of a side, that are compared

FLIPS: dict[str, Callable[[Tensor], Tensor]] = {
    "from left to right": lambda t: t.flip(-1),
    "upside down": lambda t: t.flip(-2),
    "by half a turn": lambda t: t.flip(-1, -2),
    "by a quarter turn": lambda t: t.rot90(1, (-2, -1)),
    "by a quarter turn back": lambda t: t.rot90(-1, (-2, -1)),
}


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
    return flat[:: (flat.numel() // VALUES) | 1].unique().numel()


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
    step = max(1, min(masks.shape[-2:]) // MOST)
    masks = masks[:MOST, ::step, ::step].float()
    for channel in range(min(images.shape[1], COLOURS[0])):
        picture = images[:MOST, channel, ::step, ::step].float()
        own = _correlation(picture.flatten(1), masks.flatten(1)).abs()
        square = picture.shape[-1] == picture.shape[-2]
        for words, flip in FLIPS.items():
            if "quarter" in words and not square:
                continue
            turned = _correlation(flip(picture).flatten(1), masks.flatten(1)).abs()
            strays = (turned > TOGETHER) & (own < APART)
            if float(strays.float().mean()) > SHARE / 2 and float((own > TOGETHER).float().mean()) > SHARE:
                at = int(strays.to(torch.uint8).argmax())
                got = f"of {len(own)} masks {int((own > TOGETHER).sum())} belong to their picture, and"
                got += f" {int(strays.sum())} only when it is turned {words} (sample {at}: correlation"
                got += f" {float(own[at]):.2f}, turned {float(turned[at]):.2f})"
                do = "Draw the random flip or rotation once, and do it to both"
                yield Finding("targets.flipped", f"batch.{other}", got, "masks that lie as their pictures do", do)
                return
