"""Images: every kind of file comes out as the same RGB, and one that cannot says why."""

import base64
import contextlib
import os
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import EpsImagePlugin, Image, ImageOps

from ocrlab.data import image_io
from ocrlab.data.annotations import PageError
from ocrlab.data.image_io import read_header, read_image
from ocrlab.errors import DataError
from ocrlab.notebook.page_viewer.worker import read_upload
from ocrlab.reports.html import cells


@pytest.fixture
def picture() -> NDArray[np.uint8]:
    """A smooth colour picture, 60 high and 40 wide, so that JPEG changes it little."""
    coarse = np.random.default_rng(0).integers(0, 255, (6, 4, 3), np.uint8)
    return np.asarray(cv2.resize(coarse, (40, 60), interpolation=cv2.INTER_CUBIC), np.uint8)


def save(path: Path, image: Image.Image, **options: object) -> Path:
    image.save(path, **options)  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.tif", "a.webp", "a.jpg", "with space.é.PNG", "한글.PNG"])
def test_formats_and_names(tmp_path: Path, picture: NDArray[np.uint8], name: str) -> None:
    options = {"lossless": True} if name == "a.webp" else {}
    path = save(tmp_path / name, Image.fromarray(picture), **options)
    image = read_image(path)
    assert image.shape == (60, 40, 3) and image.dtype == np.uint8 and image.flags.c_contiguous
    assert read_header(path).size(False) == (40, 60)
    assert np.abs(image.astype(int) - picture).mean() <= (8 if name == "a.jpg" else 0)


MODES = {"png": ["L", "1", "P"], "jpg": ["L", "CMYK"], "tif": ["L", "1", "P", "CMYK", "LAB"]}


@pytest.mark.parametrize(("suffix", "mode"), [(suffix, mode) for suffix, modes in MODES.items() for mode in modes])
def test_colour_modes(tmp_path: Path, picture: NDArray[np.uint8], suffix: str, mode: str) -> None:
    path = save(tmp_path / f"a.{suffix}", Image.fromarray(picture).convert(mode))
    reference = np.asarray(Image.open(path).convert("RGB"))
    assert np.abs(read_image(path).astype(int) - reference).max() <= 2


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_16_bits_keep_the_high_byte(tmp_path: Path, picture: NDArray[np.uint8], suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    cv2.imwrite(str(path), picture[..., 0].astype(np.uint16) * 256 + 7)
    np.testing.assert_allclose(read_image(path).astype(int), np.repeat(picture[..., :1], 3, axis=2), atol=1)
    cv2.imwrite(str(path), picture[..., ::-1].astype(np.uint16) * 256 + 7)
    np.testing.assert_allclose(read_image(path).astype(int), picture, atol=1)  # TIFF rounds


def test_transparent_is_white_paper(tmp_path: Path, picture: NDArray[np.uint8]) -> None:
    clear = np.dstack([picture, np.full((60, 40), 255, np.uint8)])
    clear[:30, :, 3] = 0
    image = read_image(save(tmp_path / "a.png", Image.fromarray(clear)))
    assert (image[:30] == 255).all()
    np.testing.assert_array_equal(image[30:], picture[30:])


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_only_when_asked(tmp_path: Path, picture: NDArray[np.uint8], suffix: str, orientation: int) -> None:
    tags = Image.Exif()
    tags[image_io.ORIENTATION_TAG] = orientation
    path = save(tmp_path / f"a.{suffix}", Image.fromarray(picture), exif=tags)
    header = read_header(path)
    assert header.orientation == orientation
    stored, turned = read_image(path), read_image(path, exif=True)
    with Image.open(path) as image:
        reference = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    assert stored.shape == (60, 40, 3)
    assert header.size(False) == (40, 60)
    assert header.size(True) == turned.shape[1::-1]
    assert turned.shape == reference.shape
    assert np.abs(turned.astype(int) - reference).max() <= 2


@pytest.mark.parametrize("block", [b"Exif\0\0nonsense", b"", b"Exif\0\0II*\0\xff\xff\xff\xff"])
def test_broken_exif_says_nothing(tmp_path: Path, picture: NDArray[np.uint8], block: bytes) -> None:
    path = save(tmp_path / "a.jpg", Image.fromarray(picture), exif=block)
    assert read_header(path).orientation == 1
    assert read_image(path, exif=True).shape == (60, 40, 3)


THUMBNAIL = b"Exif\0\0II*\0\x08\0\0\0\0\0\xff\xd8\xff\xda\xff\xd9"  # its end is not that of the picture


@pytest.mark.parametrize(
    "options",
    [("a.jpg", {}), ("a.jpg", {"progressive": True}), ("a.jpg", {"exif": THUMBNAIL}), ("a.png", {}), ("a.bmp", {})],
)
@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_a_cut_file_is_named(tmp_path, picture, options, part):
    name, how = options
    noise = np.random.default_rng(0).integers(0, 255, (120, 160, 3), np.uint8)
    path = save(tmp_path / name, Image.fromarray(noise), **how)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    with pytest.raises(PageError, match="a[.](jpg|png|bmp): is (damaged|not an image)"):
        read_image(path)


@pytest.mark.parametrize(("content", "says"), [
    (b"", "is empty"),
    (b"<!DOCTYPE html><html>", "is not an image.*DOCTYPE"),
    (b"version https://git-lfs.github.com/spec/v1\n", "is not an image.*version https"),
    (b"\xff\xd8\xff\xe0", "is not an image"),
    (bytes(range(256)) * 4, "is not an image"),
])  # fmt: skip
def test_what_is_no_image(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    for read in (read_header, read_image):
        with pytest.raises(PageError, match=f"a.jpg: {says}") as caught:
            read(path)
        assert caught.value.file == path


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"%PDF-1.7\n1 0 obj", "pdftoppm"), (b"\0\0\0\x18ftypheic\0\0\0\0mif1", "heif-convert"), (b"GIF8", "Copy or")],
)
def test_what_to_do_with_another_kind_of_page(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "scan"
    path.write_bytes(content)
    with pytest.raises(PageError, match=says):
        read_image(path)


def test_pages_of_a_file_are_counted(tmp_path: Path, picture: NDArray[np.uint8]) -> None:
    pages = [Image.fromarray(picture), Image.fromarray(picture[::-1]), Image.fromarray(255 - picture)]
    for suffix in ("tif", "gif"):
        path = save(tmp_path / f"all.{suffix}", pages[0], save_all=True, append_images=pages[1:])
        assert image_io.count(path) == 3
    assert image_io.count(save(tmp_path / "one.tif", pages[0])) == 1
    assert image_io.count(tmp_path / "gone.tif") == image_io.count(Path(__file__)) == 1


def test_missing_folder_and_32_bits(tmp_path: Path) -> None:
    with pytest.raises(PageError, match="none.jpg: cannot be read. Given: No such file"):
        read_image(tmp_path / "none.jpg")
    with pytest.raises(PageError, match="cannot be read. Given: Is a directory"):
        read_header(tmp_path)
    path = save(tmp_path / "a.tif", Image.fromarray(np.ones((4, 4), np.float32)))
    with pytest.raises(PageError, match="32 bits.*8 bit PNG"):
        read_image(path)


@pytest.mark.parametrize(("side", "mode"), [(12_300, "1"), (40_000, "1"), (10_300, "RGBA")])
def test_a_size_bomb_is_not_decoded(tmp_path: Path, side: int, mode: str) -> None:
    # A valid PNG header that promises 151, 1,600 or 106 megapixels: Pillow only warns of the first and last.
    path = tmp_path / "a.png"
    save(path, Image.new(mode, (8, 8)))
    data = bytearray(path.read_bytes())
    data[16:24] = side.to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    path.write_bytes(data)
    with pytest.raises(PageError, match="is too large.*at most"):
        read_image(path)


@pytest.mark.parametrize(("scans", "side", "says"), [(101, 64, "106 scans"), (1, 10_300, "bytes of memory")])
def test_a_progressive_jpeg_of_many_scans_or_pixels_is_not_decoded(tmp_path, scans, side, says):
    path = save(tmp_path / "a.jpg", Image.new("L", (64, 64), 99), progressive=True)
    data = path.read_bytes()
    size = data.index(b"\xff\xc2") + 5
    last = data.rindex(b"\xff\xda")
    data = data[:size] + struct.pack(">HH", side, side) + data[size + 4 : last] + data[last:-2] * scans + data[-2:]
    path.write_bytes(data)
    with pytest.raises(PageError, match=says):
        read_image(path)


def test_decoders_print_nothing_by_themselves(tmp_path, capfd):
    """A PNG of 3000 x 3000 pixels in 74 bytes, a PNG with a wrong bit, a TIFF of NaN, a fax with a gap."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 3000, 3000, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    (tmp_path / "lie.png").write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    Image.fromarray(np.full((50, 50), np.nan, np.float32)).save(tmp_path / "nan.tif")
    whole = save(tmp_path / "whole.png", Image.effect_noise((50, 50), 9)).read_bytes()
    middle = len(whole) // 2
    (tmp_path / "bit.png").write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    for name in ("lie.png", "nan.tif", "bit.png"):
        with pytest.raises(PageError, match=name):
            image_io.read_image(tmp_path / name)
    save(tmp_path / "fax.tif", Image.effect_noise((99, 99), 99).convert("1"), compression="group4")
    fax = (tmp_path / "fax.tif").read_bytes()
    (tmp_path / "fax.tif").write_bytes(fax[:300] + bytes(50) + fax[350:])
    with contextlib.suppress(PageError):
        image_io.read_image(tmp_path / "fax.tif")
    data = save(tmp_path / "strange.jpg", Image.new("L", (50, 50))).read_bytes()
    (tmp_path / "strange.jpg").write_bytes(data.replace(b"JFIF\0\1", b"JFIF\0\x86"))
    assert image_io.read_image(tmp_path / "strange.jpg").shape == (50, 50, 3)
    assert capfd.readouterr() == ("", "")


STRANGE = ("EPS", "PPM", "TGA", "PCX", "SGI", "ICO", "JPEG2000", "PDF")


@pytest.mark.parametrize("form", STRANGE)
def test_the_content_decides_which_decoder_starts_and_only_those_of_images_do(tmp_path, picture, form, monkeypatch):
    """Pillow starts Ghostscript for an EPS, whatever its name is."""
    ghostscript = tmp_path / "bin" / "gs"
    ghostscript.parent.mkdir()
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path}/PWNED\n", encoding="utf-8")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ghostscript.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    path = tmp_path / "x.png"
    Image.fromarray(picture).save(path, form)
    for read in (read_header, read_image):
        with pytest.raises(PageError, match=r"x.png: is not an image"):
            read(path)
    assert image_io.count(path) == 1
    with pytest.raises(DataError, match=r"x.png"):
        read_upload(path)
    code = base64.b64encode(path.read_bytes().ljust(60_000, b"\n")).decode()
    assert cells.reduce_picture(f"data:image/png;base64,{code}", code, 10, 50) == f"data:image/png;base64,{code}"
    assert not (tmp_path / "PWNED").exists()


def test_a_picture_in_a_report_is_not_decoded_above_its_bound(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", Image.new("1", (7000, 7000)))
    code = base64.b64encode(path.read_bytes()).decode()
    assert cells.reduce_picture(f"data:image/png;base64,{code}", code, 20, 50) == f"data:image/png;base64,{code}"


def test_a_file_that_is_larger_than_its_picture_can_be_is_not_read(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", Image.new("RGB", (8, 8)))
    os.truncate(path, 1 << 40)
    assert read_header(path).size(False) == (8, 8)
    with pytest.raises(PageError, match="is too large. Given: 1,099,511,627,776 bytes for 8 x 8 pixels"):
        read_image(path)


def test_what_is_no_regular_file_is_named_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    for name, says in {"pipe.jpg": "a pipe", "zero.jpg": "a device"}.items():
        for read in (read_header, read_image):
            with pytest.raises(PageError, match=f"{name}: cannot be read. Given: it is {says}, not a regular file"):
                read(tmp_path / name)
        assert image_io.count(tmp_path / name) == 1
