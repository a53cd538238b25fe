"""What is on a receipt besides text: rules, barcodes, logos, and what people add with pen and stamp."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ocrlab.data.synthetic.receipt_layout import Sheet
from ocrlab.data.synthetic.stable_random import Dice
from ocrlab.data.synthetic.typesetting import SCALE

Brush = ImageDraw.ImageDraw


def _rule(brush: Brush, kind: str, x0: int, y: int, x1: int) -> None:
    if kind in ("line", "double"):
        for shift in (0,) if kind == "line" else (-3, 3):
            brush.line([x0, y + shift, x1, y + shift], fill=230, width=2)
        return
    step, length, thick = {"dashes": (14, 9, 2), "dots": (8, 2, 2), "stars": (16, 0, 0)}[kind]
    for x in range(x0, x1 - step, step):
        if kind == "stars":
            brush.line([x, y - 3, x + 8, y + 3], fill=220, width=2)
            brush.line([x, y + 3, x + 8, y - 3], fill=220, width=2)
            brush.line([x + 4, y - 5, x + 4, y + 5], fill=220, width=2)
        else:
            brush.rectangle([x, y - thick // 2, x + length, y + thick // 2], fill=230)


def _barcode(brush: Brush, dice: Dice, x0: int, y0: int, x1: int, y1: int) -> None:
    inset = round((x1 - x0) * dice.between(0.08, 0.28))
    unit = dice.whole(2, 3)
    x = x0 + inset
    while x < x1 - inset:
        bar = unit * dice.whole(1, 3)
        brush.rectangle([x, y0 + 6, x + bar - 1, y1 - 6], fill=245)
        x += bar + unit * dice.whole(1, 3)


def _logo(brush: Brush, dice: Dice, x0: int, y0: int, x1: int, y1: int) -> None:
    middle, radius = (x0 + x1) // 2, (y1 - y0) // 2 - 4
    y = (y0 + y1) // 2
    shape, wide = dice.whole(0, 3), round(radius * dice.between(1.0, 2.2))
    if shape == 0:
        brush.ellipse([middle - wide, y - radius, middle + wide, y + radius], outline=235, width=5)
        half = radius // 2
        brush.polygon([(middle - half, y + half), (middle, y - half), (middle + half, y)], fill=235)
    elif shape == 1:
        brush.ellipse([middle - wide, y - radius, middle + wide, y + radius], fill=225)
        brush.ellipse([middle - wide // 2, y - radius // 2, middle + wide // 2, y + radius // 2], fill=0)
    elif shape == 2:
        for place in range(-3, 4):
            tall = round(radius * dice.between(0.4, 1.0))
            left = middle + place * radius // 2
            foot = y + radius
            brush.polygon([(left, foot), (left + radius // 3, foot - tall), (left + radius // 2, foot)], fill=235)
    else:
        brush.rectangle([middle - wide, y - radius, middle + wide, y + radius], fill=220)
        brush.ellipse([middle - radius // 2, y - radius // 2, middle + radius // 2, y + radius // 2], fill=0)


def _watermark(brush: Brush, dice: Dice, x0: int, y0: int, x1: int, y1: int) -> None:
    level, step = dice.whole(35, 75), dice.whole(18, 40)
    x, y = (x0 + x1) // 2, (y0 + y1) // 2
    if dice.chance(0.5):
        for radius in range((x1 - x0) // 2, step, -step):
            brush.ellipse([x - radius, y - radius, x + radius, y + radius], outline=level, width=step // 3)
    else:
        for shift in range(x0 - (y1 - y0), x1, step):
            brush.line([shift, y1, shift + y1 - y0, y0], fill=level, width=step // 3)


def printed(dice: Dice, sheet: Sheet) -> NDArray[np.uint8]:
    """Return the ink of the sheet's marks, uint8 (SCALE * height, SCALE * width); 255 is full ink."""
    plane = Image.new("L", (sheet.width * SCALE, sheet.height * SCALE))
    brush = ImageDraw.Draw(plane)
    for mark in sheet.marks:
        x0, y0 = round(mark.x * SCALE), round(mark.y * SCALE)
        x1, y1 = round((mark.x + mark.width) * SCALE), round((mark.y + mark.height) * SCALE)
        if mark.kind == "barcode":
            _barcode(brush, dice, x0, y0, x1, y1)
        elif mark.kind == "logo":
            _logo(brush, dice, x0, y0, x1, y1)
        elif mark.kind == "bar":
            brush.rectangle([x0, y0, x1, y1], fill=240)
        elif mark.kind == "box":
            brush.rectangle([x0, y0, x1, y1], outline=220, width=2)
        elif mark.kind == "watermark":
            _watermark(brush, dice, x0, y0, x1, y1)
        else:
            _rule(brush, mark.kind, x0, (y0 + y1) // 2, x1)
    return np.array(plane)


def _curve(dice: Dice, x: float, y: float, width: float, height: float, turns: int) -> list[tuple[int, int]]:
    """Return points of a smooth scribble inside the rectangle: Catmull-Rom through random knots."""
    steps = [place + dice.between(-0.7, 0.7) for place in range(turns + 3)]
    knots = [(x + width * step / turns, y + height * dice.between(0, 1)) for step in steps]
    points = []
    for a, b, c, d in zip(knots, knots[1:], knots[2:], knots[3:], strict=False):
        for step in range(8):
            t = step / 8
            weights = (-t + 2 * t * t - t**3, 2 - 5 * t * t + 3 * t**3, t + 4 * t * t - 3 * t**3, t**3 - t * t)
            at = [sum(w * k[axis] for w, k in zip(weights, (a, b, c, d), strict=True)) / 2 for axis in (0, 1)]
            points.append((round(at[0]), round(at[1])))
    return points


def handmade(dice: Dice, sheet: Sheet) -> NDArray[np.uint8]:
    """Return what was added by hand (signature, ring, stamp, frame), uint8 of the size of `printed`."""
    width, height = sheet.width * SCALE, sheet.height * SCALE
    plane = Image.new("L", (width, height))
    brush = ImageDraw.Draw(plane)
    x, y = round(width * dice.between(0.1, 0.6)), round(height * dice.between(0.05, 0.85))
    if dice.chance(0.35):
        wide, tall = width * dice.between(0.15, 0.4), height * dice.between(0.02, 0.06)
        points = _curve(dice, x, y, wide, tall, dice.whole(5, 9))
        brush.line(points, fill=230, width=dice.whole(2, 4), joint="curve")
    x, y = round(width * dice.between(0.1, 0.6)), round(height * dice.between(0.1, 0.8))
    if dice.chance(0.3):
        wide, tall = round(width * dice.between(0.12, 0.3)), round(height * dice.between(0.03, 0.07))
        brush.ellipse([x, y, x + wide, y + tall], outline=215, width=dice.whole(3, 5))
    x, y = round(width * dice.between(0.1, 0.6)), round(height * dice.between(0.1, 0.8))
    if dice.chance(0.3):
        radius = round(width * dice.between(0.08, 0.14))
        for r, thick in ((radius, 5), (radius * 4 // 5, 2)):
            brush.ellipse([x - r, y - r, x + r, y + r], outline=150, width=thick)
        brush.regular_polygon((x, y, radius // 2), 5, rotation=dice.whole(0, 71), fill=70)
    return np.array(plane)
