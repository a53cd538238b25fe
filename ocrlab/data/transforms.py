"""One composed affine warp for image and polygons together, then photometric changes; and the warp for whole pages.

A warp is a (2, 3) float64 matrix from page pixels to canvas pixels, pixel centres at whole numbers (OpenCV's habit).
Its inverse maps detections back to the original image. Canvases are RGB uint8 (H, W, 3).
"""

from __future__ import annotations

import math

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab.config.schema import Augment, Evaluate

LARGEST = 32_766  # pixels of a side that OpenCV 4 can warp
GREY = (124, 116, 104)  # the mean colour that the detector subtracts: padding becomes zero


def random_warp(
    rng: np.random.Generator,
    size: tuple[int, int],
    polygons: list[NDArray[np.float32]],
    crop: int,
    augment: Augment,
) -> NDArray[np.float64]:
    """Return the warp of a random training crop of `crop` x `crop` pixels from a page of `size` (width, height).

    The scale is relative to native pixels; with probability `around_text` a random polygon lies inside the crop.
    """
    scale = math.exp(rng.uniform(*np.log(augment.scale)))
    angle = math.radians(rng.uniform(-augment.rotate, augment.rotate))
    mirror = -1.0 if rng.random() < augment.flip else 1.0
    cos, sin = scale * math.cos(angle), scale * math.sin(angle)
    linear = np.array([[mirror * cos, -sin], [mirror * sin, cos]])
    if polygons and rng.random() < augment.around_text:
        focus = polygons[rng.integers(len(polygons))].mean(axis=0, dtype=np.float64)
    else:
        focus = rng.uniform((0, 0), size)
    target = rng.uniform(0.1, 0.9, 2) * crop  # where the focus lands
    shift = target - linear @ focus
    return np.column_stack((linear, inside(linear, shift, size, crop)))


def inside(
    linear: NDArray[np.float64], shift: NDArray[np.float64], size: tuple[int, int], crop: int
) -> NDArray[np.float64]:
    """Return `shift` changed so that the crop shows as little as possible beyond the page's bounding box."""
    corners = np.array([[0, 0], [size[0], 0], [0, size[1]], size], dtype=np.float64) @ linear.T
    low, high = corners.min(axis=0) + shift, corners.max(axis=0) + shift
    fits = high - low >= crop
    # At most one of the two is not zero where the page is larger.
    pull = np.maximum(crop - high, 0) - np.maximum(low, 0)
    return np.asarray(shift + np.where(fits, pull, (crop - high - low) / 2))


def letterbox(
    size: tuple[int, int], evaluate: Evaluate, multiple: int = 32
) -> tuple[NDArray[np.float64], tuple[int, int]]:
    """Return the warp of a whole page of `size` (width, height), and the canvas size (width, height) it needs.

    The page is reduced to `evaluate.long_side` when larger (enlarged only when asked for); the canvas is the next
    multiple of 32, padded right and below.
    """
    width, height = size
    scale = evaluate.long_side / max(width, height)
    if scale > 1 and not evaluate.enlarge:
        scale = 1.0
    new = [max(1, round(n * scale)) for n in (width, height)]
    canvas = (-(-new[0] // multiple) * multiple, -(-new[1] // multiple) * multiple)
    return resize_warp(size, (new[0], new[1])), canvas


def warp_image(image: NDArray[np.uint8], warp: NDArray[np.float64], canvas: tuple[int, int]) -> NDArray[np.uint8]:
    """Return `image` (H, W, 3) on a canvas (width, height), bilinear; averaged first where it is reduced."""
    scale = min(1.0, math.sqrt(abs(np.linalg.det(warp[:, :2]))))
    # Bilinear samples 2 x 2 pixels: below 0.75 it would skip some, and thin strokes with them.
    if scale < 0.75 or max(image.shape[:2]) > LARGEST:
        wide, high = (min(LARGEST, max(1, round(n * scale))) for n in image.shape[1::-1])
        small = (wide, high)
        warp = compose(warp, invert(resize_warp((image.shape[1], image.shape[0]), small)))
        image = cv2.resize(image, small, interpolation=cv2.INTER_AREA)
    if np.allclose(warp, [[1, 0, 0], [0, 1, 0]], atol=1e-6):
        return pad(image, canvas)
    return cv2.warpAffine(image, warp, canvas, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=GREY)


def pad(image: NDArray[np.uint8], canvas: tuple[int, int]) -> NDArray[np.uint8]:
    """Return `image` cut or padded right and below to the canvas (width, height)."""
    image = image[: canvas[1], : canvas[0]]
    below, right = canvas[1] - image.shape[0], canvas[0] - image.shape[1]
    return cv2.copyMakeBorder(image, 0, below, 0, right, cv2.BORDER_CONSTANT, value=GREY)


def resize_warp(size: tuple[int, int], new: tuple[int, int]) -> NDArray[np.float64]:
    """Return the warp that `cv2.resize` applies from `size` to `new`, both (width, height): edges meet edges."""
    sx, sy = new[0] / size[0], new[1] / size[1]
    return np.array([[sx, 0, (sx - 1) / 2], [0, sy, (sy - 1) / 2]])


def warp_points(points: NDArray[np.floating], warp: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return points (P, 2) moved by the warp, float32."""
    return (points @ warp[:, :2].T + warp[:, 2]).astype(np.float32)


def invert(warp: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the warp from the canvas back to the page."""
    linear = np.linalg.inv(warp[:, :2])
    return np.column_stack((linear, -linear @ warp[:, 2]))


def compose(second: NDArray[np.float64], first: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the warp that applies `first`, then `second`."""
    return np.column_stack((second[:, :2] @ first[:, :2], second[:, :2] @ first[:, 2] + second[:, 2]))


def photometric(rng: np.random.Generator, image: NDArray[np.uint8], augment: Augment) -> NDArray[np.uint8]:
    """Return `image` (H, W, 3) with random light, blur, noise and compression; polygons stay where they are."""
    gain, offset = 1 + augment.brightness * rng.uniform(-1, 1, 2)
    if augment.brightness:
        levels = (np.arange(256) - 128) * gain + 128 * offset
        image = cv2.LUT(image, np.clip(levels, 0, 255).astype(np.uint8))
    if rng.random() < augment.blur:
        image = cv2.GaussianBlur(image, (0, 0), rng.uniform(0.4, 1.2))
    image = noisy(rng, image, rng.uniform(0, augment.noise))
    return degraded(rng, image) if rng.random() < augment.degrade else image


def degraded(rng: np.random.Generator, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return `image` as a bad camera or copier gives it: out of focus, compressed, dark, or full of noise."""
    match rng.integers(4):
        case 0:
            return np.asarray(cv2.GaussianBlur(image, (0, 0), rng.uniform(1, 2.5)), dtype=np.uint8)
        case 1:
            _, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(10, 60))])
            return np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR), dtype=np.uint8)  # channels stay as they came
        case 2:
            dark = 255 * rng.uniform(0.15, 0.6) * (np.arange(256) / 255) ** rng.uniform(0.8, 1.6)
            return noisy(rng, cv2.LUT(image, dark.astype(np.uint8)), rng.uniform(0, 4))
        case _:
            return noisy(rng, image, rng.uniform(8, 30))


def noisy(rng: np.random.Generator, image: NDArray[np.uint8], sigma: float) -> NDArray[np.uint8]:
    """Return `image` (H, W, 3) with grey noise of standard deviation `sigma` in grey levels."""
    if sigma <= 0.5:
        return image
    grain = rng.standard_normal(image.shape[:2], dtype=np.float32) * sigma
    mixed = image.astype(np.int16) + np.rint(grain).astype(np.int16)[..., None]
    return np.clip(mixed, 0, 255).astype(np.uint8)
