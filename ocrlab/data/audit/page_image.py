"""One page image: decoded with the decoder's warnings made visible, its fingerprint, and its ink as a mask.

H W page pixels, N boxes. Black-hat (closing minus image) is how much darker a pixel is than the paper around it,
whatever the light; a box with light print on dark ground is seen by the top-hat. No threshold is a constant of the
scanner: both come from the contrast that the annotated boxes of this very page have.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab.data.annotations import PageError
from ocrlab.data.image_io import Header, read_header, read_image
from ocrlab.data.shards.tar_member import Member
from ocrlab.geometry import Polygon

Image = NDArray[np.uint8]


def decode(path: Path | Member) -> tuple[Image, Header, list[str]]:
    """Return an image (H, W, 3) RGB as stored, its header, and what the decoder had to say; raises PageError.

    libjpeg reports damage that it can step over ("bad Huffman code", "premature end") on the error stream only, where
    nobody reads it; here that stream is caught while one image decodes.
    """
    header = read_header(path)
    try:
        with _captured_stderr() as read_messages:
            image = read_image(path, exif=False)
    except MemoryError as error:
        got = f"{header.width} x {header.height} pixels"
        raise PageError("does not fit into memory", file=path, got=got) from error
    return image, header, read_messages()


@contextlib.contextmanager
def _captured_stderr() -> Iterator[Callable[[], list[str]]]:
    """Catch what C libraries write to the error stream; yields a function that returns the lines about the image."""
    lines: list[str] = []
    with tempfile.TemporaryFile() as capture:
        try:
            stderr_copy = os.dup(2)
        except OSError:  # there is no error stream to write to
            yield lambda: lines
            return
        try:
            os.dup2(capture.fileno(), 2)
            yield lambda: lines
        finally:
            os.dup2(stderr_copy, 2)
            os.close(stderr_copy)
            capture.seek(0)
            text = capture.read(4000).decode("utf-8", errors="replace")
            lines += [line.strip() for line in text.splitlines() if line.strip()]


def fingerprint(image: Image) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return what is left of an image after re-encoding or resizing: 255 bits (32,) packed, and a thumbnail (48, 48).

    The bits are the signs, against their median, of the lowest 16 x 16 cosine coefficients without the mean; the
    thumbnail is normal, mean 0 and length 1, so that its dot product with another one is their correlation.
    """
    gray = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    small = cv2.resize(gray, (64, 64), interpolation=cv2.INTER_AREA).astype(np.float32)
    low = cv2.dct(small)[:16, :16].reshape(-1)[1:]
    thumb = cv2.resize(gray, (48, 48), interpolation=cv2.INTER_AREA).astype(np.float32)
    thumb -= cv2.GaussianBlur(thumb, (0, 0), 6)  # the light of the scan is not content
    length = float(np.linalg.norm(thumb))
    bits = np.packbits(low > np.median(low))
    return bits, np.asarray(thumb.reshape(-1) / length if length > 1e-3 else np.zeros(48 * 48), np.float32)


TEXT = 22.0  # pixels; higher lines are reduced to this, which is enough to see where their ink is
LARGEST = 2400  # pixels of the long side, whatever the lines are
FAINT = 10  # grey levels; less contrast is paper
SHARE = 0.4  # of the contrast nearby, that a pixel needs to be ink

Mask = NDArray[np.bool_]
Gray = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Sheet:
    """One page, perhaps reduced: grey, ink, contrast, and by how many boxes each pixel is covered, all (H, W)."""

    gray: Gray
    ink: Mask
    contrast: Gray  # how much darker than the paper around it
    covered: NDArray[np.uint16]
    polygons: list[Polygon]  # of this sheet
    scale: float  # sheet pixels per image pixel
    text: float  # height of a typical box in sheet pixels


def sheet(image: NDArray[np.uint8], polygons: Sequence[Polygon]) -> Sheet:
    """Return the ink of a page (H, W, 3) RGB with boxes, N polygons (P, 2) in its pixels."""
    heights = [height(polygon) for polygon in polygons]
    typical = float(np.median(heights)) if heights else max(image.shape[:2]) / 60
    scale = min(1.0, TEXT / max(typical, 1.0), LARGEST / max(image.shape[:2]))
    gray = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    if scale < 1:
        size = (max(1, round(gray.shape[1] * scale)), max(1, round(gray.shape[0] * scale)))
        gray = cv2.resize(gray, size, interpolation=cv2.INTER_AREA)
    gray = np.asarray(gray, np.uint8)
    scaled = [np.asarray(polygon * scale, np.float32) for polygon in polygons]
    text = max(4.0, typical * scale)
    ink, contrast = _ink(gray, scaled, text)
    return Sheet(gray, ink, contrast, coverage(gray.shape, scaled), scaled, scale, text)


def height(polygon: Polygon) -> float:
    """Return the height of the text in a box (P, 2) in pixels: of its smallest rectangle the shorter side."""
    if len(polygon) == 4:
        sides = np.hypot(*(np.roll(polygon, -1, axis=0) - polygon).T)
        return float(min(sides[0] + sides[2], sides[1] + sides[3]) / 2)
    return float(min(cv2.minAreaRect(polygon.astype(np.float32))[1]))


def coverage(shape: tuple[int, ...], polygons: Sequence[Polygon]) -> NDArray[np.uint16]:
    """Return by how many polygons each pixel (H, W) is covered."""
    covered = np.zeros(shape[:2], np.uint16)
    for polygon in polygons:
        window, inside = filled(shape, polygon)
        covered[window] += inside
    return covered


def filled(shape: tuple[int, ...], polygon: Polygon) -> tuple[tuple[slice, slice], NDArray[np.uint8]]:
    """Return where on a page (H, W) a polygon is: the window around it, and a mask of ones in that window."""
    low = np.clip(np.floor(polygon.min(axis=0)), 0, (shape[1], shape[0])).astype(int)
    high = np.clip(np.ceil(polygon.max(axis=0)) + 1, low, (shape[1], shape[0])).astype(int)
    inside = np.zeros((high[1] - low[1], high[0] - low[0]), np.uint8)
    if inside.size:
        cv2.fillPoly(inside, [np.rint(polygon - low).astype(np.int32)], 1)
    return (slice(low[1], high[1]), slice(low[0], high[0])), inside


def _ink(gray: Gray, polygons: Sequence[Polygon], text: float) -> tuple[Mask, Gray]:
    """Return the ink (H, W), dark on light, and inside boxes of light print the light; and the contrast (H, W)."""
    size = 2 * round(text * 0.6) + 1
    kernel = cv2.getStructuringElement(cv2.MORPH_RECT, (size, size))
    dark = cv2.morphologyEx(gray, cv2.MORPH_BLACKHAT, kernel)
    ink = _strong(dark, text, polygons)
    light: Mask | None = None
    for polygon in polygons:
        window, inside = filled(gray.shape, polygon)
        values = gray[window][inside > 0]
        if not values.size:
            continue
        low, middle, high = np.percentile(values, (3, 50, 97))
        # Light print on dark ground has more of its pixels near the dark end.
        if high - low > 4 * FAINT and middle - low < 0.5 * (high - middle):
            if light is None:
                light = _strong(cv2.morphologyEx(gray, cv2.MORPH_TOPHAT, kernel), text, [polygon])
            ink[window] = np.where(inside > 0, light[window], ink[window])
    return ink, np.asarray(dark, np.uint8)


def _strong(contrast: Gray, text: float, polygons: Sequence[Polygon]) -> Mask:
    """Return the pixels (H, W) that are ink: by the contrast that boxes have, and by the strongest nearby."""
    contrasts = []
    for polygon in polygons:
        window, inside = filled(contrast.shape, polygon)
        values = contrast[window][inside > 0]
        if values.size:
            contrasts.append(np.percentile(values, 95))
    floor = max(FAINT, 0.25 * float(np.median(contrasts))) if contrasts else 2.5 * FAINT
    size = 2 * round(text * 0.8) + 1
    peak = cv2.dilate(contrast, cv2.getStructuringElement(cv2.MORPH_RECT, (size, size)))
    return np.asarray((contrast >= floor) & (contrast >= SHARE * peak), np.bool_)
