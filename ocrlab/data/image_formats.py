"""Opening an image that may be a stranger's: by a list of formats whose decoders start no program, its size first.

Pillow tries every format that it knows by the content, whatever the name: an EPS named page.png starts Ghostscript on
the PostScript in it. Everything in ocrlab that opens an image with Pillow does so here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from PIL import Image

FORMATS = ("JPEG", "PNG", "TIFF", "BMP", "DIB", "WEBP", "GIF")  # Pillow takes a MPO for a JPEG
MAX_PIXELS = 150_000_000  # A3 at 1200 dpi is refused; A4 in colour takes too much memory there, in grey it does not
MOST_BYTES = 950_000_000  # of memory that decoding an image may take, its file included
LARGEST_PICTURE = 40_000_000  # pixels of a picture in a report
BYTES_PER_PIXEL = 8  # at most, of a file that is not compressed
BESIDES = 64 * 2**20  # bytes of a file that are not pixels: EXIF, colour profiles, thumbnails


class TooManyPixels(ValueError):
    """An image is larger than what is decoded."""


@contextmanager
def open_image(file: BinaryIO, most: int = MAX_PIXELS) -> Iterator[Image.Image]:
    """Read the header of an image of FORMATS; nothing is decoded until its pixels are asked for.

    Raises TooManyPixels above `most` pixels, and whatever Pillow raises for a file that is none of these.
    """
    with warnings.catch_warnings():  # Pillow warns from 89 megapixels on, and about EXIF blocks that nobody reads
        warnings.simplefilter("ignore")
        try:
            with Image.open(file, formats=FORMATS) as image:
                width, height = image.size
                if width * height > most:
                    raise TooManyPixels(f"{width} x {height} pixels")
                yield image
        except Image.DecompressionBombError as error:  # of this frame, or of a later one
            raise TooManyPixels(str(error)) from error
