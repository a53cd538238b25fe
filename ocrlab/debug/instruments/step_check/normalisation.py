"""Pictures that were normalised wrongly, told from the numbers that the first layer gets.

What is known is the mean and deviation of ImageNet, for pictures of 0 to 1: with them black and white of each colour
become numbers that nothing else gives. What is normalised by others is let alone, but for the size of its values.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, red green blue
FAINT = 1.00001 / 255  # the most that an image of 0..255 holds when it is divided by 255 twice
LARGE = 16.0  # mean size of an input: images of 0..255 have about 100, normalised ones 1
FLAT = 0.02  # a picture of 0..1, divided by a deviation of 0..255, spans less
VALUES = 8  # more than a picture of 0..255 has in so small a span
WIDE = 2.0  # deviation of a picture that was divided by one twice; once gives about 1
EDGE = 2e-3  # by which black or white may miss its number

Violation = tuple[str, str, str]  # got, need, do


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
    if high < -1 and 0 < span <= FLAT and came[:, 0].unique().numel() > VALUES:  # blank pages lie above
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
