"""The DB loss and its gradient in two passes over the pixels, compiled by numba when this is imported.

One thread does it, in less time than torch's pool needs for the same: a second pool beside torch's makes every step
many times slower where there are few cores. Loops are so plain that LLVM turns them into vector instructions; that is
why the exponential is written out here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocrlab import compiled_loops

Map = NDArray[np.float32]
Floats = NDArray[np.float64]

BLOCK = 1024  # pixels; ten arrays of so many fit the first-level cache
EPS = 1e-6
K = np.float32(50)  # steepness of the approximate step function
UNIT, ZERO, HALF, TWO = np.float32(1), np.float32(0), np.float32(0.5), np.float32(2)
FINE = 19  # bits of a float32 that the second histogram of `hardest` looks at, the first at those above


# The sums of a `part` may be taken in any order, as vectors need it; an `exact` one computes in the order of its text.
part = compiled_loops.part(error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
exact = compiled_loops.part(error_model="numpy", fastmath={"contract"})


@exact
def decay(z: np.float32) -> tuple[Any, Any]:
    """Return exp(-|z|) as a number from 0.7 to 1.4 and the bits of a power of two; polynomial of Moshier's Cephes."""
    z = -abs(z)
    z = np.float32(-87) if z < np.float32(-87) else z  # NaN stays; the rest does not underflow
    n = math.floor(z * np.float32(1.44269504) + HALF)
    r = z - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
    q = np.float32(1.9875691500e-4)
    q = q * r + np.float32(1.3981999507e-3)
    q = q * r + np.float32(8.3334519073e-3)
    q = q * r + np.float32(4.1665795894e-2)
    q = q * r + np.float32(1.6666665459e-1)
    q = q * r + np.float32(5.0000001201e-1)
    return q * r * r + r + UNIT, (np.int32(n) + np.int32(127)) << np.int32(23)


@exact
def log1p(e: np.float32) -> Any:
    """Return log(1 + e) for e in 0..1, as 2 artanh(e / (2 + e))."""
    w = e / (TWO + e)
    s = w * w
    q = np.float32(1 / 13)
    q = q * s + np.float32(1 / 11)
    q = q * s + np.float32(1 / 9)
    q = q * s + np.float32(1 / 7)
    q = q * s + np.float32(1 / 5)
    q = q * s + np.float32(1 / 3)
    return TWO * (w + w * s * q)


@part
def exponentials(z: Map, e: Map, power: NDArray[np.int32], scale: Map) -> None:
    """Put exp(-|z|) into `e`; `power` and `scale` are two views of the same scratch memory."""
    for i in range(len(z)):
        e[i], power[i] = decay(z[i])
    for i in range(len(z)):
        e[i] *= scale[i]


@part
def text_terms(x: Map, e: Map, truth: Map, mask: Map, probability: Map, hard: Map, sums: Floats) -> None:
    """Put sigmoids of `x` and the losses of negatives (-1 elsewhere) where they belong, and add to the first 3 sums."""
    positives = negatives = on_text = ZERO
    for i in range(len(x)):
        inverse = UNIT / (UNIT + e[i])
        probability[i] = inverse if x[i] >= 0 else e[i] * inverse
        loss = (max(x[i], ZERO) - x[i] * truth[i]) + log1p(e[i])
        positive = truth[i] * mask[i]
        negative = mask[i] - positive
        positives += positive
        negatives += negative
        on_text += loss * positive
        hard[i] = -UNIT if negative <= 0 else ZERO if loss < 0 else loss * negative
    sums[0] += positives
    sums[1] += negatives
    sums[2] += on_text


@part
def border_terms(y: Map, e: Map, border: Map, mask: Map, threshold: Map, sums: Floats) -> None:
    """Put sigmoids of `y` into `threshold`, and add to the sums 3 and 4."""
    off = count = ZERO
    for i in range(len(y)):
        inverse = UNIT / (UNIT + e[i])
        value = inverse if y[i] >= 0 else e[i] * inverse
        threshold[i] = value
        off += abs(value - border[i]) * mask[i]
        count += mask[i]
    sums[3] += off
    sums[4] += count


@part
def binary_terms(step: Map, e: Map, truth: Map, mask: Map, sums: Floats) -> None:
    """Add the approximate binary map, which is the sigmoid of `step`, to the sums 5 and 6."""
    inside = area = ZERO
    for i in range(len(step)):
        inverse = UNIT / (UNIT + e[i])
        binary = (inverse if step[i] >= 0 else e[i] * inverse) * mask[i]
        inside += binary * truth[i]
        area += binary
    sums[5] += inside
    sums[6] += area


@part
def steps(probability: Map, threshold: Map, out: Map) -> None:
    """Put k (P - T) into `out`."""
    for i in range(len(out)):
        out[i] = K * (probability[i] - threshold[i])


@part
def beyond(values: Map, edge: np.float32) -> Any:
    """Return the sum of the values above `edge`."""
    total = ZERO
    for i in range(len(values)):
        total += values[i] if values[i] > edge else ZERO
    return total


@part
def hardest(hard: Map, count: int) -> tuple[Any, Any, float]:
    """Return the count-th largest loss, the share of each loss equal to it that counts, and the sum of those largest.

    Non-negative floats order like their bits: a histogram of the upper bits finds the bin, one of the lower the value.
    """
    if count == 0:
        return np.float32(np.inf), ZERO, 0.0
    bits = hard.view(np.int32)
    coarse = np.zeros(1 << (32 - FINE), np.int64)
    for i in range(len(bits)):
        coarse[(bits[i] >> FINE) & (len(coarse) - 1)] += 1  # those with a sign fall into the upper half
    above, upper = 0, len(coarse) // 2 - 1
    while above + coarse[upper] < count:
        above += coarse[upper]
        upper -= 1
    fine = np.zeros(1 << FINE, np.int64)
    for i in range(len(bits)):
        if bits[i] >> FINE == upper:
            fine[bits[i] & (len(fine) - 1)] += 1
    lower = len(fine) - 1
    while above + fine[lower] < count:
        above += fine[lower]
        lower -= 1
    edge = np.array([(upper << FINE) | lower], np.int32).view(np.float32)[0]
    total = 0.0
    for start in range(0, len(hard), BLOCK):
        total += beyond(hard[start : start + BLOCK], edge)
    return edge, np.float32((count - above) / fine[lower]), total + (count - above) * edge


@part
def gradients(
    probability: Map, threshold: Map, e: Map, hard: Map, truth: Map, mask: Map, border: Map, border_mask: Map, at: Map
) -> None:
    """Turn both maps into the gradients by their logits; `at` holds what the whole batch said, as `db_loss` puts it."""
    edge, share, by_bce, by_inside, by_area, by_l1 = at[0], at[1], at[2], at[3], at[4], at[5]
    for i in range(len(hard)):
        p, t = probability[i], threshold[i]
        inverse = UNIT / (UNIT + e[i])
        positive = truth[i] * mask[i]
        step = e[i] * inverse * inverse * (mask[i] * by_inside - positive * by_area)
        hardest = UNIT if hard[i] > edge else share if hard[i] == edge else ZERO
        chosen = positive + hardest * (mask[i] - positive)
        off = t - border[i]
        side = UNIT if off > 0 else -UNIT if off < 0 else ZERO
        probability[i] = step * (p * (UNIT - p)) + (p - truth[i]) * chosen * by_bce
        threshold[i] = (side * border_mask[i] * by_l1 - step) * (t * (UNIT - t))


@compiled_loops.entry(
    "void(f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f4[::1], f8[::1], f4[::1], f4[::1], f4[::1], f8[::1])",
    error_model="numpy",
)
def db_loss(
    x: Map,
    y: Map,
    truth: Map,
    mask: Map,
    border: Map,
    border_mask: Map,
    settings: Floats,
    hard: Map,
    gx: Map,
    gy: Map,
    parts: Floats,
) -> None:
    """Put the gradients by both logits into `gx` and `gy`, and total, BCE, dice and L1 into `parts`; see `on_device`.

    `settings` are the three weights, the negative ratio, and the share of negatives that teach when there is no text;
    `hard` is scratch memory. In between `gx` and `gy` hold the two maps.
    """
    sums, at = np.zeros(7), np.empty(6, np.float32)
    z, e, power = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32), np.empty(BLOCK, np.int32)
    scale = power.view(np.float32)
    for start in range(0, len(x), BLOCK):
        b = slice(start, min(start + BLOCK, len(x)))
        n = b.stop - b.start
        exponentials(x[b], e[:n], power, scale)
        text_terms(x[b], e[:n], truth[b], mask[b], gx[b], hard[b], sums)
        exponentials(y[b], e[:n], power, scale)
        border_terms(y[b], e[:n], border[b], border_mask[b], gy[b], sums)
        steps(gx[b], gy[b], z[:n])
        exponentials(z[:n], e[:n], power, scale)
        binary_terms(z[:n], e[:n], truth[b], mask[b], sums)
    positives, negatives, on_text, off, borders, inside, area = sums
    wanted = math.floor(positives * settings[3]) if positives > 0 else math.ceil(negatives * settings[4])
    count = int(min(wanted, negatives))
    edge, share, of_hard = hardest(hard, count)
    counted, union, off = positives + count + EPS, area + positives + EPS, off / max(borders, EPS)
    by_dice, by_l1 = 2 * settings[1] * 50 / union**2, settings[2] / max(borders, EPS)
    at[0], at[1], at[2] = edge, share, settings[0] / counted
    at[3], at[4], at[5] = by_dice * inside, by_dice * union, by_l1
    for start in range(0, len(x), BLOCK):
        b = slice(start, min(start + BLOCK, len(x)))
        n = b.stop - b.start
        steps(gx[b], gy[b], z[:n])
        exponentials(z[:n], e[:n], power, scale)
        gradients(gx[b], gy[b], e[:n], hard[b], truth[b], mask[b], border[b], border_mask[b], at)
    parts[1], parts[2], parts[3] = (on_text + of_hard) / counted, 1 - 2 * inside / union, off
    parts[0] = settings[0] * parts[1] + settings[1] * parts[2] + settings[2] * parts[3]
