"""The photograph of a printed sheet: table, paper, folds, light, lens, camera.

Pixels are made by adding, multiplying and dividing single array elements, which IEEE 754 fixes to the last bit on every
machine. Sums over arrays, matrix products and functions such as exp depend on the vector unit, so none is used.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ocrlab.data.synthetic.stable_random import Dice
from ocrlab.data.synthetic.typesetting import SCALE

Field = NDArray[np.float32]
Matrix = tuple[float, float, float, float, float, float, float, float, float]
# colours as (red, green, blue): paper relative to white, the others in grey levels
TINTS = ((1, 0.99, 0.97), (1, 1, 1), (1, 0.96, 0.86), (0.98, 0.93, 0.74), (1, 0.88, 0.88), (0.86, 0.93, 1))
TABLES = ((92, 62, 40), (150, 112, 78), (58, 60, 66), (116, 124, 110), (190, 180, 166), (214, 206, 196), (94, 108, 134))
INKS = ((28, 28, 32), (40, 38, 44), (46, 44, 84), (62, 52, 60))
PENS = ((30, 50, 150), (170, 40, 50), (30, 90, 80), (50, 50, 60))


def place(dice: Dice, sheet: tuple[int, int], page: tuple[int, int]) -> Matrix:
    """Return the homography from paper to page, row by row: turned up to 6 degrees, seen slightly from the side.

    `sheet` and `page` are (width, height) in pixels. The whole sheet lies inside the page.
    """
    angle = math.radians(dice.between(-1, 1) * dice.between(1, 6))
    cosine, sine = math.cos(angle), math.sin(angle)
    corners = []
    for x, y in ((-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)):
        x, y = sheet[0] * (x + dice.between(-0.015, 0.015)), sheet[1] * (y + dice.between(-0.01, 0.01))
        corners.append((x * cosine - y * sine, x * sine + y * cosine))
    low = [min(corner[axis] for corner in corners) for axis in (0, 1)]
    span = [max(corner[axis] for corner in corners) - low[axis] for axis in (0, 1)]
    zoom = min(1.0, *((page[axis] - 4) / span[axis] for axis in (0, 1)))
    start = [2 + (page[axis] - 4 - zoom * span[axis]) * dice.between(0.1, 0.9) for axis in (0, 1)]
    quad = [tuple(start[axis] + zoom * (corner[axis] - low[axis]) for axis in (0, 1)) for corner in corners]
    return _homography(quad, sheet)


def _homography(quad: list[tuple[float, ...]], sheet: tuple[int, int]) -> Matrix:
    """Return the homography that takes the corners of the sheet to `quad` (Heckbert 1989, unit square to quad)."""
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = quad
    sx, sy = x0 - x1 + x2 - x3, y0 - y1 + y2 - y3
    area = (x1 - x2) * (y3 - y2) - (x3 - x2) * (y1 - y2)
    g = (sx * (y3 - y2) - (x3 - x2) * sy) / area
    h = ((x1 - x2) * sy - sx * (y1 - y2)) / area
    w, t = sheet
    return (
        (x1 - x0 + g * x1) / w, (x3 - x0 + h * x3) / t, x0,
        (y1 - y0 + g * y1) / w, (y3 - y0 + h * y3) / t, y0,
        g / w, h / t, 1.0,
    )  # fmt: skip


def project(matrix: Matrix, x: float, y: float) -> tuple[float, float]:
    """Return the pixel of the page where the point (x, y) of the paper is seen."""
    a, b, c, d, e, f, g, h, i = matrix
    depth = g * x + h * y + i
    return (a * x + b * y + c) / depth, (d * x + e * y + f) / depth


def paper_coordinates(matrix: Matrix, width: int, height: int) -> tuple[Field, Field]:
    """Return where on the paper the middle of each pixel of the page looks: two (height, width) arrays, x and y."""
    a, b, c, d, e, f, g, h, i = matrix
    x, y = np.arange(width) + 0.5, np.arange(height)[:, None] + 0.5
    depth = (d * h - e * g) * x + ((b * g - a * h) * y + (a * e - b * d))
    u = ((e * i - f * h) * x + ((c * h - b * i) * y + (b * f - c * e))) / depth
    v = ((f * g - d * i) * x + ((a * i - c * g) * y + (c * d - a * f))) / depth
    return u.astype(np.float32), v.astype(np.float32)


def sample(plane: NDArray[np.uint8], u: Field, v: Field) -> Field:
    """Return the ink plane seen through the map, bilinear with 1/16 px steps in whole numbers, 0..1; no ink outside."""
    padded = np.zeros((plane.shape[0] + 3, plane.shape[1] + 3), np.uint8)
    padded[1:-2, 1:-2] = plane
    # in 1/16 pixels of the plane: back by half a pixel to the middle of the first, on by one for the border of zeros
    x = np.clip(u * (16 * SCALE) + 8, 0, 16 * (padded.shape[1] - 2)).astype(np.int32)
    y = np.clip(v * (16 * SCALE) + 8, 0, 16 * (padded.shape[0] - 2)).astype(np.int32)
    fx, fy = x & 15, y & 15
    at = (y >> 4) * padded.shape[1] + (x >> 4)
    flat = padded.ravel()
    row = padded.shape[1]
    upper = flat[at] * (16 - fx) + flat[at + 1] * fx
    lower = flat[at + row] * (16 - fx) + flat[at + row + 1] * fx
    return (upper * (16 - fy) + lower * fy).astype(np.float32) / (255 * 256)


def cloud(dice: Dice, width: int, height: int, across: int, down: int) -> Field:
    """Return smooth noise in -1..1, (height, width), from a grid of `down` x `across` random numbers."""
    grid = Image.fromarray(dice.noise(max(down, 2), max(across, 2)))
    smooth = np.asarray(grid.resize((width, height), Image.Resampling.BICUBIC))
    return smooth.astype(np.float32) / 127.5 - 1


def grain(dice: Dice, width: int, height: int) -> Field:
    """Return white noise with mean 0 and standard deviation 1, nearly normal: the sum of three dice per pixel."""
    first, second, third = (dice.noise(height, width).astype(np.float32) for _ in range(3))
    return (first + second + third - np.float32(382.5)) / np.float32(128)


def table(dice: Dice, width: int, height: int) -> list[Field]:
    """Return the three colour planes of what the receipt lies on: wood, cloth, stone or a plain desk."""
    kind = dice.pick(("wood", "cloth", "stone", "plain"))
    tone = 1 + 0.12 * cloud(dice, width, height, 4, 5)
    if kind == "wood":
        tone = tone + 0.22 * cloud(dice, width, height, width // 6, 6)
        tone = tone + 0.12 * cloud(dice, width, height, width // 2, 12)
    elif kind == "cloth":
        period = dice.whole(4, 7)
        threads = [np.abs(np.arange(side) % period * 2 - period).astype(np.float32) for side in (width, height)]
        tone = tone + (0.3 / period) * (threads[0] + threads[1][:, None] - period)
        tone = tone + 0.15 * cloud(dice, width, height, width // 3, height // 3)
    elif kind == "stone":
        tone = tone + 0.2 * cloud(dice, width, height, width // 24, height // 24)
        tone = tone + 0.25 * cloud(dice, width, height, width // 4, height // 4)
    colour = dice.pick(TABLES)
    return [np.maximum(tone, 0.15) * float(part) for part in colour]


def _bump(distance: Field, reach: float) -> Field:
    """Return 1 at distance 0, falling smoothly to nothing within a few `reach`."""
    ratio: Field = distance * np.float32(1 / reach)
    return np.float32(1) / (1 + ratio * ratio)


def relief(dice: Dice, u: Field, v: Field, sheet: tuple[int, int]) -> Field:
    """Return the shading of folds and crumples on the paper, about 1."""
    height, width = u.shape
    shade = 1 + 0.035 * cloud(dice, width, height, 9, 13)
    for _ in range(dice.whole(0, 3)):  # a fold: one flank lit, the other in shade, the ridge worn
        along, middle = (v, sheet[1]) if dice.chance(0.6) else (u, sheet[0])
        across = u if along is v else v
        distance = along - middle * dice.between(0.15, 0.85) - dice.between(-0.03, 0.03) * across
        flank = distance * (1 / dice.between(8, 30))
        shade = shade + dice.between(-0.16, 0.16) * flank / (1 + flank * flank) * 2
        shade = shade + dice.between(-0.18, 0.12) * _bump(distance, dice.between(0.8, 1.8))
    for _ in range(dice.whole(0, 6)):  # crumples: short ridges in any direction
        x, y = sheet[0] * dice.between(0, 1), sheet[1] * dice.between(0, 1)
        slope = dice.between(-2, 2)
        steep, level = np.float32(slope / (1 + abs(slope))), np.float32(1 / (1 + abs(slope)))
        distance = (u - np.float32(x)) * steep + (v - np.float32(y)) * level
        away = (u - x) * (u - x) + (v - y) * (v - y)
        near = 1 / (1 + away * (1 / dice.between(30, 120) ** 2))
        shade = shade + dice.between(-0.15, 0.15) * _bump(distance, dice.between(1.5, 5)) * near
    return shade


def _across(length: int) -> Field:
    """Return where each pixel of a side stands, 0..1."""
    return np.arange(length, dtype=np.float32) * np.float32(1 / length)


def light(dice: Dice, width: int, height: int) -> Field:
    """Return the light that falls on the page, at most 1: a slope, a soft unevenness, shadows of hand and telephone."""
    x, y = _across(width) - 0.5, _across(height)[:, None] - 0.5
    field = 1 + dice.between(-0.9, 0.9) * x + dice.between(-0.9, 0.9) * y
    field = field + dice.between(0.05, 0.2) * cloud(dice, width, height, 3, 4)
    for _ in range(dice.pick((0, 1, 1, 2))):
        slope, turn = dice.between(-1.5, 1.5), dice.pick((-1.0, 1.0))
        edge = turn * ((x - dice.between(-0.35, 0.35)) + slope * (y - dice.between(-0.35, 0.35)))
        soft = np.clip(edge * (1 / dice.between(0.02, 0.3)) + 0.5, 0, 1)
        field = field * (1 - dice.between(0.25, 0.6) * soft * soft * (3 - 2 * soft))
    return np.maximum(field / field.max(), 0.34)


def glare(dice: Dice, width: int, height: int) -> Field:
    """Return the grey levels that a lamp or flash adds where the paper mirrors it."""
    x, y = _across(width) - dice.between(0.1, 0.9), _across(height)[:, None] - dice.between(0.1, 0.9)
    away = x * x * dice.between(0.5, 2) + y * y * dice.between(0.5, 2) + x * y
    return _bump(away.astype(np.float32), dice.between(0.01, 0.05)) * dice.between(30, 90)


def stain(dice: Dice, u: Field, v: Field, sheet: tuple[int, int]) -> Field:
    """Return how much of a brown stain (the ring of a cup, or a blot) covers each pixel, 0..1."""
    x, y = sheet[0] * dice.between(0, 1), sheet[1] * dice.between(0, 1)
    radius = sheet[0] * dice.between(0.1, 0.22)
    height, width = u.shape
    away = np.sqrt((u - x) * (u - x) + (v - y) * (v - y)) + radius * 0.08 * cloud(dice, width, height, 12, 16)
    ring = _bump(away - radius, radius * 0.05) * dice.between(0.5, 1.0)
    disc = np.clip((radius - away) * 0.1, 0, 1) * dice.between(0.1, 0.5)
    return np.maximum(ring, disc)


def wear(dice: Dice, u: Field, v: Field) -> Field:
    """Return how much of the print is left, 0.45..1: faded heat-print, weak bands, dead dots of the print head."""
    height, width = u.shape
    left = dice.between(0.62, 1.0) + dice.between(0.02, 0.2) * cloud(dice, width, height, 6, 9)
    left = left * (1 - dice.between(0, 0.25) * np.abs(cloud(dice, width, height, width // 3, height // 3)))
    for _ in range(dice.whole(0, 3)):
        left = left * (1 - dice.between(0.15, 0.6) * _bump(u - dice.between(0, width), dice.between(0.5, 3)))
    return np.clip(left, 0.45, 1)


def soften(image: NDArray[np.uint8], weight: int) -> NDArray[np.uint8]:
    """Return the image blurred by [w, 256 - 2w, w] / 256 down and across, in whole numbers."""
    pixels = image.astype(np.uint16)
    for axis in (0, 1):
        size = pixels.shape[axis]
        before = np.take(pixels, np.maximum(np.arange(size) - 1, 0), axis)
        after = np.take(pixels, np.minimum(np.arange(size) + 1, size - 1), axis)
        pixels = ((before + after) * np.uint16(weight) + pixels * np.uint16(256 - 2 * weight) + np.uint16(128)) >> 8
    return pixels.astype(np.uint8)


def photograph(
    dice: Dice, ink: NDArray[np.uint8], pen: NDArray[np.uint8], matrix: Matrix, page: tuple[int, int]
) -> NDArray[np.uint8]:
    """Return the picture of the sheet, (H, W, 3) RGB uint8; `ink` and `pen` are its planes, `page` is (W, H)."""
    width, height = page
    sheet = (ink.shape[1] // SCALE, ink.shape[0] // SCALE)
    u, v = paper_coordinates(matrix, width, height)
    edge = np.minimum(np.minimum(u, sheet[0] - u), np.minimum(v, sheet[1] - v))
    if dice.chance(0.2):  # a close-up or a scan: nothing but paper in view
        edge = edge + float(width + height)
    cover = np.clip(edge + 0.5, 0, 1)
    fade = sample(ink, u, v) * wear(dice, u, v)
    pen_ink = sample(pen, u, v) * dice.between(0.5, 0.9) if pen.any() else np.zeros_like(u)
    blot = stain(dice, u, v, sheet) * dice.between(0.1, 0.4) if dice.chance(0.35) else np.zeros_like(u)
    lit = light(dice, width, height)
    shade = relief(dice, u, v, sheet) + 0.02 * grain(dice, width, height)
    tint, bright = dice.pick(TINTS), dice.between(185, 245)
    dark, colour = dice.pick(INKS), dice.pick(PENS)
    ground = table(dice, width, height)
    shadow = 1 - dice.between(0.2, 0.6) * _bump(np.minimum(edge, 0), dice.between(4, 14))
    planes = []
    for channel in range(3):
        paper = shade * (bright * tint[channel]) * (1 - blot * (0.15, 0.3, 0.55)[channel])
        paper = paper * (1 - pen_ink) + pen_ink * colour[channel]
        paper = paper * (1 - fade) + fade * dark[channel]
        planes.append((ground[channel] * shadow * (1 - cover) + paper * cover) * lit)
    picture = np.clip(np.stack(planes, 2), 0, 255).astype(np.uint8)
    if dice.chance(0.3):
        picture = np.clip(picture + glare(dice, width, height)[:, :, None], 0, 255).astype(np.uint8)
    for _ in range(dice.whole(0, 2)):
        picture = soften(picture, dice.whole(24, 64))
    noise = grain(dice, width, height) * dice.between(1.5, 5)
    return np.clip(picture + noise[:, :, None], 0, 255).astype(np.uint8)
