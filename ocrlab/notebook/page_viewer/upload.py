"""A file that somebody uploaded, as a page: whatever it is, it becomes pixels or one sentence that says why not."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ocrlab.data import image_io
from ocrlab.errors import DataError

PDF = b"%PDF"


def read(path: Path) -> tuple[NDArray[np.uint8], list[str]]:
    """Return a file as RGB (H, W, 3) uint8, and what was done to it in words; raises DataError naming the file only.

    Unlike a page of a data folder it is turned as its EXIF orientation asks: people expect what their viewer shows.
    """
    try:
        with path.open("rb") as file:
            if file.read(1024).lstrip().startswith(PDF):
                do = "Convert its pages to images first: pdftoppm -r 150 -png FILE page"
                raise DataError(f"{path.name} is a PDF", need="an image", do=do)
        header = image_io.read_header(path)
        image = image_io.read_image(path, exif=True)
    except OSError as error:
        raise DataError(f"{path.name} cannot be read", got=error.strerror) from error
    except DataError as error:
        raise DataError(
            error.what.replace(str(path), path.name), got=error.got, need=error.need, do=error.do
        ) from error
    notes = [f"turned as its EXIF orientation {header.orientation} asks"] if header.orientation > 1 else []
    return image, notes + _more(path)


def _more(path: Path) -> list[str]:
    """Return in words what of a file is not looked at, or was converted."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path) as image:
                frames, mode = getattr(image, "n_frames", 1), image.mode
    except Exception:  # the pixels are there already; this only adds words
        return []
    notes = [f"the first of its {frames} frames"] if frames > 1 else []
    notes += ["CMYK, converted to RGB"] if mode == "CMYK" else []
    notes += ["16 bits a channel, of which the high 8 are used"] if mode.startswith("I;16") else []
    return notes + (["transparent pixels made white"] if mode in image_io.ALPHA_MODES else [])
