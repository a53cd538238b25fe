"""Uploaded files of every kind: pixels, or one sentence that names the file and no folder."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ocrlab.errors import DataError
from ocrlab.notebook.page_viewer.worker import read_upload

GREY = np.tile(np.arange(64, dtype=np.uint8) * 4, (48, 1))


def exif(path: Path) -> None:
    tags = Image.Exif()
    tags[274] = 6
    Image.fromarray(GREY).save(path, "jpeg", exif=tags)


def animated(path: Path) -> None:
    frames = [Image.fromarray(np.full((48, 64), value, np.uint8)) for value in (0, 120, 250)]
    frames[0].save(path, "gif", save_all=True, append_images=frames[1:])


GOOD: dict[str, tuple[Callable[[Path], object], tuple[int, int], str]] = {
    "plain.png": (lambda path: Image.fromarray(GREY).save(path), (48, 64), ""),
    "without_an_ending": (lambda path: Image.fromarray(GREY).save(path, "png"), (48, 64), ""),
    "cmyk.jpg": (lambda path: Image.fromarray(GREY).convert("CMYK").save(path), (48, 64), "CMYK"),
    "deep.png": (lambda path: Image.fromarray(GREY.astype(np.uint16) << 8).save(path), (48, 64), "16 bits"),
    "clear.png": (lambda path: Image.fromarray(GREY).convert("RGBA").save(path), (48, 64), "transparent"),
    "animated.gif": (animated, (48, 64), "first of its 3 frames"),
    "turned.jpg": (exif, (64, 48), "orientation 6"),
    "tiny.png": (lambda path: Image.new("L", (1, 1)).save(path), (1, 1), ""),
}


@pytest.mark.parametrize("name", GOOD)
def test_images_become_pixels_and_what_was_done_is_reported(tmp_path: Path, name: str) -> None:
    write, shape, words = GOOD[name]
    write(tmp_path / name)
    image, notes = read_upload(tmp_path / name)
    assert (image.shape, image.dtype) == ((*shape, 3), np.uint8)
    assert words in "; ".join(notes) and bool(notes) == bool(words)


def header(width: int, height: int) -> bytes:
    """Return the beginning of a PNG of any size."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    begun = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return begun + struct.pack(">I", 5000) + b"IDAT"


BAD = {
    "empty.jpg": (b"", "is empty"),
    "text.png": (b"not an image at all" * 50, "not an image"),
    "paper.pdf": (b"%PDF-1.7\n" + bytes(500), "is a PDF.*pdftoppm"),
    "renamed.jpg": (b"\n%PDF-1.4\n" + bytes(500), "is a PDF"),
    "huge.png": (header(60_000, 60_000) + bytes(100), "too large"),
    "cut.png": (header(64, 48) + bytes(20), "damaged|not an image"),
    "zeros.bmp": (bytes(5000), "not an image"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_image_gets_a_single_sentence_without_the_folder(tmp_path: Path, name: str) -> None:
    data, words = BAD[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=words) as caught:
        read_upload(tmp_path / name)
    assert name in str(caught.value)
    assert str(tmp_path) not in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.png cannot be read"):
        read_upload(tmp_path / "gone.png")
