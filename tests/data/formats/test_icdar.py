"""ICDAR text and curved text: what real files hold is read, what cannot be read is named with its line."""

from pathlib import Path

import numpy as np
import pytest
import shapely
from PIL import Image

from ocrlab.data import target_maps
from ocrlab.data.annotations import PageError
from ocrlab.data.formats.curved_text import ctw_xml, outlines, total_text
from ocrlab.data.formats.icdar import read_icdar, write_icdar
from ocrlab.data.formats.reader import load
from ocrlab.errors import DataError
from ocrlab.evaluation.metrics import iou

LINE = "10,20,60,20,60,40,10,40"
QUAD = np.array([[10, 20], [60, 20], [60, 40], [10, 40]], np.float32)


def written(folder: Path, content: bytes | str) -> Path:
    path = folder / "gt_page.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(("content", "texts"), [
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
])  # fmt: skip
def test_what_files_hold(tmp_path: Path, content: str, texts: list[str]) -> None:
    boxes = read_icdar(written(tmp_path, content))
    assert boxes.texts == texts
    assert boxes.ignored == [False] * len(texts)
    assert all(polygon is not None and np.array_equal(polygon, QUAD) for polygon in boxes.polygons)
    assert len(boxes.polygons) == len(texts)


@pytest.mark.parametrize(("bad", "says"), [
    (b"1,2,3,4,5,6,7", "7 fields are too few"),
    (b"10 20 60 40 word", "field 1 is not a number"),
    (b"10,20,60,20,60,4O,10,40,text", "field 6 is not a number"),
    (b"10,20,60,20,60,,10,40,text", "field 6 is not a number"),
    (b"10,20,60,20,nan,40,10,40,text", "field 5 is not a position"),
    (b"10,20,60,20,60,40,10,inf,text", "field 8 is not a position"),
    (b"10,20,60,20,60,40,1e300,40,text", "field 7 is not a position"),
    (LINE.encode() + b",caf\xe9", "is not UTF-8. Given: byte 0xe9"),
])  # fmt: skip
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


FILE = Path("gt.txt")


def arc(radius=150, thick=40, points=7, centre=(320, 300)):
    """Return a bow of text (2 * points, 2): along its top from left to right, and back along its foot."""
    angles = np.linspace(np.pi * 1.15, np.pi * 1.85, points)
    ring = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return np.rint(np.concatenate([ring * 150, ring[::-1] * 110]) + centre).astype(np.float32)


def text_of(polygon: np.ndarray) -> str:
    return ",".join(str(int(value)) for value in polygon.ravel())


def write_text(folder: Path, content: str) -> Path:
    (folder / "gt.txt").write_text(content, encoding="utf-8")
    return folder / "gt.txt"


@pytest.mark.parametrize(("record", "text", "ignored"), [
    ("x: [[1 9 9 1]], y: [[2 2 8 8]], ornt: [u'h'], transcriptions: [u'the']", "the", False),
    ("x: [[ 1  9\n  9 1]], y: [[2 2\n 8   8]], ornt: [u'c'], transcriptions: [u'the']", "the", False),
    ("x: [[1 9 9 1]], y: [[2 2 8 8]], ornt: [u'#'], transcriptions: [u'#']", "#", True),
    ("x: [[1 9 9 1]], y: [[2 2 8 8]], ornt: [u'h'], transcriptions: [u'###']", "###", True),
    ("x: [[1 9 9 1]], y: [[2 2 8 8]], ornt: [], transcriptions: []", "", True),
    ("x: [[1 9 9 1]], y: [[2 2 8 8]], ornt: [u'm'], transcriptions: [u\"DON'T\"]", "DON'T", False),
    ("x: [[1 9 9 1]], y: [[2 2 8 8]], ornt: [u'm'], transcriptions: [u'a]b, [c']", "a]b, [c", False),
    ("x: [[1 9 9 1]], y: [[2 2 8 8]], ornt: [u'm'], transcriptions: [u'caf\\xe9']", "café", False),
    ("x: [[1.0, 9.0, 9, 1]], y: [[2, 2, 8, 8]], ornt: ['h'], transcriptions: ['the']", "the", False),
])  # fmt: skip
def test_total_text(record: str, text: str, ignored: bool) -> None:
    boxes = total_text(f"{record}\n\n{record}\n", FILE)
    assert (boxes.texts, boxes.ignored) == ([text] * 2, [ignored] * 2)
    np.testing.assert_array_equal(boxes.polygons[1], np.float32([[1, 2], [9, 2], [9, 8], [1, 8]]))


@pytest.mark.parametrize("record", [
    "x: [[1 9 9]], y: [[2 2 8 8]], ornt: [u'h'], transcriptions: [u'the']",
    "x: [[1 9 9 one]], y: [[2 2 8 8]], ornt: [u'h'], transcriptions: [u'the']",
    "x: [[1 9 9 1]], y: [[2 2 8 8]]",
    "x: [[1 9 9 1]], y: [[2 2 8 8]], ornt: [u'h'], transcriptions: [__import__('os')]",
    "x: [[1 9 9 nan]], y: [[2 2 8 8]], ornt: [u'h'], transcriptions: [u'the']",
])  # fmt: skip
def test_a_damaged_record_is_named(record: str) -> None:
    good = "x: [[1 9 9 1]], y: [[2 2 8 8]], ornt: [u'h'], transcriptions: [u'the']"
    with pytest.raises(PageError, match="gt.txt:3: a record is damaged"):
        total_text(f"{good}\n{good}\n{record}", FILE)


def test_ctw_xml(tmp_path: Path) -> None:
    bow = arc()
    box = '<box height="1" left="1" top="1" width="1"><label>{}</label><segs>{}</segs><pts x="1" y="2" /></box>'
    content = box.format("R&amp;B", text_of(bow)) + box.format("###", text_of(bow + 5))
    boxes = ctw_xml(f'<Annotations>\n <image file="1001.jpg">{content}</image>\n</Annotations>', FILE)
    assert (boxes.texts, boxes.ignored) == (["R&B", "###"], [False, True])
    np.testing.assert_array_equal(boxes.polygons[0], bow)
    assert ctw_xml('<image file="1001.jpg"></image>', FILE).polygons == []


@pytest.mark.parametrize(("content", "says"), [
    ("<Annotations>", "gt.txt:1: is not XML"),
    ("<annotation><object/></annotation>", "is not one page of CTW1500. Given: <annotation>, 0 images"),
    ("<image><box><label>x</label></box></image>", "box 0: segs is not a polygon"),
    ("<image><box><segs>1,2,3,4,5</segs></box></image>", "box 0: segs is not a polygon"),
    ("<image><box><segs>1,2,3,4,5,six</segs></box></image>", "box 0: segs is not a polygon"),
    ('<!DOCTYPE a [<!ENTITY b "c">]><image>&b;</image>', "defines XML entities"),
])  # fmt: skip
def test_a_damaged_xml_is_named(content: str, says: str) -> None:
    with pytest.raises(PageError, match=says):
        ctw_xml(content, FILE)


def test_ctw_offsets(tmp_path: Path) -> None:
    bow = arc()
    low, high = bow.min(axis=0), bow.max(axis=0)
    line = text_of(np.concatenate([low[None], high[None], bow - low]))
    boxes = read_icdar(write_text(tmp_path, f"{line}\n{line}\n"))
    assert boxes.texts == ["", ""]
    np.testing.assert_array_equal(boxes.polygons[1], bow)


@pytest.mark.parametrize("points", [3, 4, 5, 7, 8, 16])
@pytest.mark.parametrize("text", ["", "word, and more", "2019", "12,500.00", "###"])
def test_lines_of_2n_numbers(tmp_path: Path, points: int, text: str) -> None:
    bow = arc(points, centre=(920, 900))
    quad = np.float32([[10, 20], [60, 20], [60, 40], [10, 40]])
    boxes = read_icdar(write_text(tmp_path, f"{text_of(bow)},{text}\n{text_of(quad)},one\n"))
    assert boxes.texts == [text, "one"] and boxes.ignored == [text == "###", False]
    np.testing.assert_array_equal(boxes.polygons[0], bow)
    np.testing.assert_array_equal(boxes.polygons[1], quad)


def test_no_line_of_real_receipts_is_taken_for_curved_text(shared: Path) -> None:
    numeric = 0
    for file in sorted((shared / "data" / "sroie" / "val" / "gts").glob("*.txt")):
        for line in file.read_text("utf-8").splitlines():
            numeric += line.split(",", 8)[8][:1].isdigit()
            assert outlines([line]) is None
    assert numeric > 500


def test_curved_polygons_survive_to_maps_and_scores(tmp_path: Path) -> None:
    bow, other = arc(), arc(centre=(320, 560))
    for folder in ("images", "gts"):
        (tmp_path / "train" / folder).mkdir(parents=True)
    Image.new("L", (640, 640)).save(tmp_path / "train" / "images" / "1001.png")
    content = f"{text_of(bow)},####one\n{text_of(other)},#######\n"
    (tmp_path / "train" / "gts" / "0001001.txt").write_text(content)
    (sample,) = load(tmp_path, "train").samples
    np.testing.assert_array_equal(sample.polygons[0], bow)
    assert sample.ignored.tolist() == [False, True]
    maps = target_maps.make(sample.polygons, sample.ignored, (640, 640), shrink_ratio=0.4, threshold_range=(0.3, 0.7))
    y, x = np.nonzero(maps.shrink_map)
    assert len(x) > 500 and shapely.contains_xy(shapely.Polygon(bow), x, y).all()
    assert maps.shrink_map[262, 320] == 0, "the hollow under the bow is not text"
    assert maps.shrink_mask[430, 320] == 0 and maps.ignored.tolist() == [False, True]
    match = iou.match(sample.polygons, sample.ignored, [bow, other], thresholds=(0.5, 0.8))
    assert match.matched(0.8) == 1 and match.cared_detections == 1
    hull = np.array(shapely.Polygon(bow).convex_hull.exterior.coords[:-1], np.float32)
    assert iou.match(sample.polygons, sample.ignored, [hull], thresholds=(0.8,)).matched(0.8) == 0


def test_the_folders_of_total_text(tmp_path: Path) -> None:
    for split in ("Train", "Test"):
        (tmp_path / "Images" / split).mkdir(parents=True)
        (tmp_path / "txt_format" / split).mkdir(parents=True)
        Image.new("L", (100, 90)).save(tmp_path / "Images" / split / "img11.jpg")
        record = "x: [[10 40 40 10]], y: [[20 20 30 30]], ornt: [u'h'], transcriptions: [u'the']"
        (tmp_path / "txt_format" / split / "poly_gt_img11.txt").write_text(record)
    for split in ("train", "test"):
        index = load(tmp_path, split)
        assert [(sample.name, sample.texts) for sample in index.samples] == [("img11", ("the",))]
        assert index.problems == []
    with pytest.raises(DataError, match="no split 'val'.*splits Test, Train"):
        load(tmp_path, "val")
