"""ICDAR text: what real files hold is read, what cannot be read is named with its line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ocrlab.data.annotations import PageError
from ocrlab.data.formats.icdar import read_icdar, write_icdar

LINE = "10,20,60,20,60,40,10,40"
QUAD = np.array([[10, 20], [60, 20], [60, 40], [10, 40]], np.float32)


def written(folder: Path, content: bytes | str) -> Path:
    path = folder / "gt_page.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (f"{LINE},TOTAL\n", ["TOTAL"]),
        (f"\ufeff{LINE},TOTAL\n", ["TOTAL"]),
        (f"{LINE},TOTAL\r\n{LINE},RM 1\r\n", ["TOTAL", "RM 1"]),
        (f"{LINE},TOTAL\r{LINE},RM 1", ["TOTAL", "RM 1"]),
        (f"{LINE},81750, MASAI, JOHOR", ["81750, MASAI, JOHOR"]),
        (f"{LINE},", [""]),
        (LINE, [""]),
        (f"\n  \n{LINE},a\n\n", ["a"]),
        (f"{LINE},a\n\ufeff{LINE},b\n", ["a", "b"]),
        (f"{LINE},a\u2028b\x0bc\x85d", ["a\u2028b\x0bc\x85d"]),
        (" 10 , 20.0,6e1,20,60,40,10,+40,한글", ["한글"]),
        ("", []),
        ("\ufeff", []),
    ],
)
def test_what_files_hold(tmp_path: Path, content: str, texts: list[str]) -> None:
    boxes = read_icdar(written(tmp_path, content))
    assert boxes.texts == texts
    assert boxes.ignored == [False] * len(texts)
    assert all(polygon is not None and np.array_equal(polygon, QUAD) for polygon in boxes.polygons)
    assert len(boxes.polygons) == len(texts)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b"1,2,3,4,5,6,7", "7 fields are too few"),
        (b"10 20 60 40 word", "field 1 is not a number"),
        (b"10,20,60,20,60,4O,10,40,text", "field 6 is not a number"),
        (b"10,20,60,20,60,,10,40,text", "field 6 is not a number"),
        (b"10,20,60,20,nan,40,10,40,text", "field 5 is not a position"),
        (b"10,20,60,20,60,40,10,inf,text", "field 8 is not a position"),
        (b"10,20,60,20,60,40,1e300,40,text", "field 7 is not a position"),
        (LINE.encode() + b",caf\xe9", "is not UTF-8. Given: byte 0xe9"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, bad: bytes, says: str) -> None:
    path = written(tmp_path, f"{LINE},good\r\n\r\n".encode() + bad + f"\r\n{LINE},good".encode())
    with pytest.raises(PageError) as caught:
        read_icdar(path)
    assert str(caught.value).startswith(f"{path}:3: {says}")
    assert caught.value.problem.line == 3
    assert "Needed: " in str(caught.value)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    quads = [rng.uniform(0, 900, (4, 2)).astype(np.float32) for _ in range(20)]
    texts = ["a, b", "", "###", "한글", "two\nlines"] * 4
    write_icdar(tmp_path / "res_1.txt", quads, texts, decimals=2)
    boxes = read_icdar(tmp_path / "res_1.txt")
    assert boxes.texts == [text.replace("\n", " ") for text in texts]
    assert boxes.ignored == [text == "###" for text in texts]
    for quad, polygon in zip(quads, boxes.polygons, strict=True):
        assert polygon is not None
        np.testing.assert_allclose(polygon, quad, atol=0.006)


def test_the_published_form(tmp_path: Path) -> None:
    path = tmp_path / "res_1.txt"
    for texts in (None, ["", ""]):
        write_icdar(path, [QUAD - 10.4, QUAD + 0.6], texts)
        assert path.read_bytes() == b"0,10,50,10,50,30,0,30\n11,21,61,21,61,41,11,41\n"
    write_icdar(path, [])
    assert path.read_bytes() == b""
    with pytest.raises(ValueError, match="zip"):
        write_icdar(path, [QUAD], [])


def test_other_polygons_become_their_rectangle(tmp_path: Path) -> None:
    octagon = np.array([[20, 0], [80, 0], [100, 5], [100, 15], [80, 20], [20, 20], [0, 15], [0, 5]], np.float32)
    write_icdar(tmp_path / "res_1.txt", [octagon])
    assert (tmp_path / "res_1.txt").read_text() == "0,0,100,0,100,20,0,20\n"
