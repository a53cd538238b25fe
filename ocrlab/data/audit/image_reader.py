"""One image file, decoded with the decoder's warnings made visible, and in the frame its boxes were drawn in."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab.data.annotations import PageError
from ocrlab.data.image_io import Header, read_header, read_image
from ocrlab.data.shards.tar_member import Member

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
        raise PageError(
            "does not fit into memory", file=path, got=f"{header.width} x {header.height} pixels"
        ) from error
    return image, header, read_messages()


@contextlib.contextmanager
def _captured_stderr() -> Iterator[Callable[[], list[str]]]:
    """Catch what C libraries write to the error stream; yields a function that returns the lines about the image."""
    lines: list[str] = []
    with tempfile.TemporaryFile() as capture:
        try:
            stderr_copy = os.dup(2)
        except OSError:  # no error stream at all: nothing is said, and nothing can be heard
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
    thumb -= cv2.GaussianBlur(thumb, (0, 0), 6)  # the light of the scan is no content
    length = float(np.linalg.norm(thumb))
    bits = np.packbits(low > np.median(low))
    return bits, np.asarray(thumb.reshape(-1) / length if length > 1e-3 else np.zeros(48 * 48), np.float32)
