"""Image files: size and orientation from the header alone, pixels as RGB.

EXIF orientation (tag 274, values 1-8) is applied only when asked for. TIFF is the exception: there the orientation is a
tag of the format itself, and OpenCV and Pillow both apply it, whatever they are asked.
"""

from __future__ import annotations

import io
import os
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ocrlab import safe_read
from ocrlab.data.annotations import PageError
from ocrlab.data.folder_layouts import SUFFIXES
from ocrlab.data.image_formats import BESIDES, BYTES_PER_PIXEL, MAX_PIXELS, MOST_BYTES, TooManyPixels, open_image
from ocrlab.data.shards.tar_member import Member

ORIENTATION_TAG = 274
DEFLATE = 1032  # bytes at most that one compressed byte stands for (RFC 1951: 258 for each 2 bits)
if "OPENCV_LOG_LEVEL" not in os.environ:  # ocrlab reports what is wrong with a file; the decoders need not print it too
    (cv2.utils.logging if hasattr(cv2.utils, "logging") else cv2).setLogLevel(0)  # OpenCV 5, and 4
BAND = 512  # rows of a page that are converted at a time
# Bytes of memory that a pixel takes at most while a plain PNG or JPEG is decoded, of which OpenCV makes two copies, and
# while anything else is: a progressive JPEG has coefficients too, a TIFF a whole strip.
LIGHT, HEAVY = 6, 9
MOST_CHUNKS = 100_000  # of a PNG whose sums are checked
MOST_SCANS = 100  # of a JPEG: each goes over all of its pixels; 10 are usual
START_OF_SCAN = b"\xff\xda"
ALPHA_MODES = frozenset({"RGBA", "LA", "PA", "La", "RGBa"})
PILLOW_MODES = frozenset({"CMYK", "LAB", "HSV"})  # OpenCV converts these by other formulas, or takes them for RGB


# By what the first 16 bytes hold: what to do with a file that is not an image.
FOREIGN = {
    b"%PDF": "Make images of its pages: pdftoppm -r 200 -png FILE.pdf page",
    b"ftyphe": "Convert it: heif-convert FILE.heic FILE.jpg",
    b"ftypmif1": "Convert it: heif-convert FILE.heic FILE.jpg",
    b"": "Copy or convert the file again, or remove the page",
}


@dataclass(frozen=True, slots=True)
class Header:
    """What the first bytes of an image say; `width` and `height` are in pixels as stored, before EXIF orientation."""

    width: int
    height: int
    orientation: int  # EXIF, 1 (upright) to 8
    form: str  # JPEG, PNG, ...
    opencv: bool  # OpenCV decodes it as it should; otherwise Pillow does
    memory: int = 0  # bytes that its pixels take at most while they are decoded

    @property
    def turned(self) -> bool:
        """True if the orientation swaps width and height."""
        return self.orientation >= 5

    def size(self, exif: bool) -> tuple[int, int]:
        """Return (width, height) in pixels as `read_image(path, exif=exif)` will decode it."""
        return (self.height, self.width) if exif and self.turned else (self.width, self.height)


def read_header(path: Path | Member | str, first: int | None = None) -> Header:
    """Read size and orientation without decoding; raises PageError (a DataError) if it is not a usable image.

    Of a file in a tar only the `first` bytes are looked at.
    """
    path = _place(path)
    try:
        if isinstance(path, Member):
            return _header(io.BytesIO(path.head(path.size if first is None else first)), path)
        with safe_read.open_file(path) as file:
            return _header(file, path)
    except OSError as error:
        raise _unreadable(path, error) from error


def read_image(path: Path | Member | str, *, exif: bool = False) -> NDArray[np.uint8]:
    """Decode an image file to RGB, uint8 (H, W, 3).

    16-bit samples keep their high byte, transparent pixels become white, CMYK and palettes become RGB; with `exif` the
    EXIF orientation is applied. Raises PageError (a DataError) for a file that is missing, truncated, too large
    or not an image.
    """
    path = _place(path)
    header, data = _read(path)
    rgb = _decode_opencv(data) if header.opencv and _is_whole(data, header) else None
    if rgb is None or rgb.shape[:2] != (header.height, header.width):
        rgb = _decode_pillow(data, path)
    return upright(rgb, header.orientation) if exif else rgb


def read_file(path: Path | Member) -> bytes:
    """Return the bytes of an image file, or of one in a tar; raises PageError where they cannot be read."""
    try:
        return path.read_bytes() if isinstance(path, Member) else safe_read.read(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def count(path: Path | Member | str) -> int:
    """Return how many pages (TIFF) or frames (GIF) a file holds; `read_image` reads the first. It never raises."""
    try:
        with open_image(io.BytesIO(_read(_place(path))[1])) as image:
            return int(getattr(image, "n_frames", 1))
    except Exception:  # see _header
        return 1


def upright(image: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Turn an (H, W, 3) image as its EXIF orientation 1-8 asks (CIPA DC-008, tag 274); 5-8 give (W, H, 3)."""
    if orientation >= 5:
        image = image.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    return np.ascontiguousarray(image)


def _place(path: Path | Member | str) -> Path | Member:
    return path if isinstance(path, Member) else Path(path)


def _read(path: Path | Member) -> tuple[Header, bytes]:
    """Return header and bytes of an image; the header is looked at before a large file is read whole."""
    try:
        if isinstance(path, Member):
            start = path.head(BESIDES)
            header = _header(io.BytesIO(start), path)
            _check_size(path, header, path.size)
            data = start if path.size <= len(start) else path.read_bytes()
        else:
            with safe_read.open_file(path) as file:
                header = _header(file, path)
                size = file.seek(0, os.SEEK_END)
                _check_size(path, header, size)
                file.seek(0)
                data = file.read(size + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if header.form in ("JPEG", "MPO") and (scans := data.count(START_OF_SCAN)) > 2:  # of a thumbnail, and its own
        if scans > MOST_SCANS:
            raise PageError("is not decoded", file=path, got=f"{scans:,} scans", need=f"at most {MOST_SCANS}")
        _check_size(path, replace(header, memory=HEAVY * header.width * header.height), len(data))
    return header, data


def _check_size(path: Path | Member, header: Header, size: int) -> None:
    """Raise PageError for an image whose file is too large for its pixels, or that takes too much memory."""
    pixels = f"{header.width} x {header.height} pixels"
    if size > header.width * header.height * BYTES_PER_PIXEL + BESIDES:
        raise _too_large(path, f"{size:,} bytes for {pixels}")
    if size + header.memory > MOST_BYTES:
        got, need = f"{size + header.memory:,} bytes of memory for {pixels}", f"at most {MOST_BYTES:,} bytes"
        do = "Reduce the image, or save it as a JPEG that is not progressive"
        raise PageError("is too large", file=path, got=got, need=need, do=do)


def _header(file: BinaryIO, path: Path | Member) -> Header:
    start = file.read(16)
    file.seek(0)
    if not start:
        raise PageError("is empty", file=path, got="0 bytes", need="an image", do="Copy it again, or remove the page")
    try:
        with open_image(file) as image:
            return _describe(image)
    except TooManyPixels as error:
        raise _too_large(path, str(error)) from error
    except Exception as error:  # for a broken file Pillow's parsers raise whatever they stumble over
        got = f"a file that starts with {start!r}"
        need = f"an intact {', '.join(sorted(suffix[1:] for suffix in SUFFIXES))} file"
        do = next((do for mark, do in FOREIGN.items() if mark in start), FOREIGN[b""])
        raise PageError("is not an image that can be read", file=path, got=got, need=need, do=do) from error


def _describe(image: Image.Image) -> Header:
    orientation = 1
    if "exif" in image.info and image.format != "TIFF":
        # Not image.getexif(): for a PNG without EXIF that decodes the whole picture to look for a late chunk.
        exif = Image.Exif()
        try:
            exif.load(image.info["exif"])
            tag = exif.get(ORIENTATION_TAG)
        except Exception:  # a broken EXIF block says nothing, and the pixels are still good
            tag = None
        orientation = tag if isinstance(tag, int) and 1 <= tag <= 8 else 1
    special = image.mode in ALPHA_MODES | PILLOW_MODES or "transparency" in image.info
    special |= image.info.get("jfif_version", (1, 0))[0] != 1  # libjpeg complains on stderr, except in Pillow
    light = image.format in ("JPEG", "MPO", "PNG") and not special and "progressive" not in image.info
    memory = image.width * image.height * (LIGHT if light else HEAVY)
    return Header(image.width, image.height, orientation, image.format or "", not special, memory)


def _is_whole(data: bytes, header: Header) -> bool:
    """Return whether OpenCV may decode a file: it fills what a cut JPEG lacks with grey, and says nothing.

    Of a damaged PNG, and of one that cannot hold its pixels, libpng complains on stderr by itself.
    """
    if header.form in ("JPEG", "MPO"):
        return data.rfind(b"\xff\xd9") > data.rfind(START_OF_SCAN)  # the end of the image
    if header.form != "PNG":
        return True
    enough = header.width * header.height <= DEFLATE * 8 * len(data)
    return enough and b"IEND" in data[-64:] and _sums_are_right(data)


def _sums_are_right(png: bytes) -> bool:
    """Return whether the check sums of a PNG's chunks are right (ISO 15948, 5.3)."""
    view, at = memoryview(png), 8
    for _ in range(MOST_CHUNKS):
        if at >= len(png):
            return True
        end = at + 8 + int.from_bytes(view[at : at + 4], "big")
        if zlib.crc32(view[at + 4 : end]) != int.from_bytes(view[end : end + 4], "big"):
            return False
        at = end + 4
    return False


def _decode_opencv(data: bytes) -> NDArray[np.uint8] | None:
    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        bgr = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:
        return None  # Pillow gets its turn, and words the error if it fails too
    if bgr is None or bgr.dtype != np.uint8:
        return None
    return np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB, dst=bgr), np.uint8)


def _decode_pillow(data: bytes, path: Path | Member) -> NDArray[np.uint8]:
    try:
        with open_image(io.BytesIO(data)) as image:
            return _to_rgb(image, path)
    except PageError:
        raise
    except Exception as error:  # see _header
        got, do = f"{error} ({len(data):,} bytes)", "Copy the file again, or remove the page"
        raise PageError("is damaged", file=path, got=got, need="a complete image", do=do) from error


def _to_rgb(image: Image.Image, path: Path | Member) -> NDArray[np.uint8]:
    if image.mode in ("I", "F"):
        what, do = "has 32 bits a pixel, whose range is unknown", "Convert it to an 8 bit PNG"
        raise PageError(what, file=path, got=f"mode {image.mode}", need="8 or 16 bits a channel", do=do)
    if image.mode.startswith("I;16"):
        grey = (np.asarray(image) >> 8).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    width, height = image.size
    rgb = np.empty((height, width, 3), np.uint8)
    for top in range(0, height, BAND):  # so that a conversion never holds the whole page once more
        part = image.crop((0, top, width, min(top + BAND, height)))
        if part.mode in ALPHA_MODES or "transparency" in part.info:
            part = Image.alpha_composite(Image.new("RGBA", part.size, "white"), part.convert("RGBA"))
        rgb[top : top + BAND] = np.asarray(part.convert("RGB"))
    return rgb


def _unreadable(path: Path | Member, error: OSError) -> PageError:
    return PageError("cannot be read", file=path, got=error.strerror or str(error), need="a readable image file")


def _too_large(path: Path | Member, got: str) -> PageError:
    return PageError("is too large", file=path, got=got, need=f"at most {MAX_PIXELS:,} pixels", do="Reduce the image")
