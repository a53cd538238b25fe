"""Images, and the boxes and masks that belong to them.

Known are the mean and deviation of ImageNet for images of 0 to 1: with them black and white of each colour become
numbers that nothing else gives. Corners are recognised by what a loss computes from the columns of boxes (N, 4): the
larger of the first two and the smaller of the last two of two boxes are the corners of their intersection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ocrlab.debug.instruments.step_check.findings import Finding, is_readable

SIDE = 16  # pixels from which on neighbours say something
COLOURS = (3, 4)
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
EDGE = 2e-3  # deviation of black or white

Violation = tuple[str, str, str]  # got, need, do


def check_images(named: Sequence[tuple[str, Tensor]]) -> Iterator[Finding]:
    """Yield what is wrong with the pictures (N, C, H, W) of a batch, and with masks (N, H, W) or (N, 1, H, W) of it."""
    large = [(n, t.detach()) for n, t in named if t.ndim in (3, 4) and is_readable(t) and min(t.shape[-2:]) >= SIDE]
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


def _correlation(a: Tensor, b: Tensor) -> Tensor:
    """Return the correlation of each row of `a` with that of `b`, 0 where one of them does not vary."""
    a, b = a - a.mean(-1, keepdim=True), b - b.mean(-1, keepdim=True)
    size = a.norm(dim=-1) * b.norm(dim=-1)
    return torch.where(size > 0, (a * b).sum(-1) / size.clamp(min=1e-30), size.new_zeros(()))


def _flipped(images: Tensor, other: str, masks: Tensor) -> Iterator[Finding]:
    """Report masks of which some belong to their picture as it is, and others only to its mirror image."""
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
