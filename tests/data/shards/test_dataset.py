"""Shards: what the ordinary formats give, they give; tars of anybody; what is wrong with them is named."""

import io
import json
import multiprocessing
import os
import pickle
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ocrlab.data.annotations import PageError
from ocrlab.data.formats import reader
from ocrlab.data.shards import dataset
from ocrlab.errors import DataError

BOXES = [{"points": [[10, 20], [60, 21], [61, 40], [9, 41]], "text": "RM 5.00"}]


def jpeg(color: int = 200, size: tuple[int, int] = (100, 80), orientation: int | None = None) -> bytes:
    file, exif = io.BytesIO(), Image.Exif()
    if orientation:
        exif[274] = orientation
    Image.new("RGB", size, (color, color, color)).save(file, "JPEG", exif=exif)
    return file.getvalue()


def page(boxes: object = BOXES, **more: object) -> bytes:
    return json.dumps({"boxes": boxes, **more}).encode()


def make(tar: Path, files: Iterable[tuple[str, bytes]], form: int = tarfile.GNU_FORMAT) -> Path:
    tar.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(tar, "w", format=form) as out:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return tar


def numbered(count: int, start: int = 0) -> list[tuple[str, bytes]]:
    files = []
    for number in range(start, start + count):
        files += [(f"p{number:03d}.jpg", jpeg(number)), (f"p{number:03d}.json", page())]
    return files


def names(folder: Path, split: str = "train", **options: bool) -> list[str]:
    return [sample.name for sample in reader.load(folder, split, **options).samples]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_pages_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    make(tmp_path / "train" / "000000.tar", numbered(3))
    make(tmp_path / "train" / "000001.tar", numbered(2, 3))
    index = reader.load(tmp_path, "train")
    samples = index.samples
    assert isinstance(samples, dataset.Samples)
    assert (len(samples), index.problems, dict(+index.dropped)) == (5, [], {})
    last = samples[-1]
    assert (last.name, last.texts, last.width, last.height) == ("p004", ("RM 5.00",), 100, 80)
    np.testing.assert_array_equal(last.polygons[0], BOXES[0]["points"])  # type: ignore[arg-type]
    assert reader.read_image(last.image).shape == (80, 100, 3)
    assert abs(int(reader.read_image(samples[3].image)[0, 0, 0]) - 3) <= 1  # its own pixels
    assert samples.name_at(2) == "p002"
    assert [sample.name for sample in samples[1:3]] == ["p001", "p002"]
    assert [sample.name for sample in samples.take([4, 0])] == ["p004", "p000"]
    assert samples.take([4, 0]).take([1]).name_at(0) == "p000"
    for wrong in (5, -6):
        with pytest.raises(IndexError):
            samples[wrong]


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_tars_of_every_form_and_names_of_every_length(tmp_path: Path, form: int) -> None:
    long = "shop/" + "d" * 60 + "/" + "n" * (130 if form != tarfile.USTAR_FORMAT else 80)
    accents = "caf\u00e9 \u5408\u8a08" if form == tarfile.PAX_FORMAT else "cafe"
    files = [(f"{name}.{end}", data) for name in (long, accents) for end, data in (("jpg", jpeg()), ("json", page()))]
    make(tmp_path / "train" / "a.tar", files, form)
    assert names(tmp_path) == [long, accents]
    assert reader.read_image(reader.load(tmp_path, "train").samples[0].image).shape == (80, 100, 3)


def test_what_gnu_tar_makes_of_a_folder(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name, data in numbered(3):
        (source / name).write_bytes(data)
    os.link(source / "p000.jpg", source / "p009.jpg")
    (source / "p009.json").write_bytes(page())
    (tmp_path / "train").mkdir()
    command = ["tar", "--sort=name", "-cf", str(tmp_path / "train" / "x.tar"), "-C", str(source), "."]
    subprocess.run(command, check=True, timeout=60)
    index = reader.load(tmp_path, "train")
    assert [sample.name for sample in index.samples] == ["p000", "p001", "p002"]
    assert "p009" in str(index.problems[0]) and "--hard-dereference" in str(index.problems[0])


def test_what_is_wrong_is_named_and_left_out(tmp_path: Path) -> None:
    wrong = [
        *(("alone.jpg", jpeg()), ("nothing.json", page())),
        *(("bad.jpg", jpeg()), ("bad.json", b"{")),
        *(("none.jpg", b"no image"), ("none.json", page())),
        *(("two.jpg", jpeg()), ("two.png", jpeg()), ("two.json", page())),
        *(("../out.jpg", jpeg()), ("../out.json", page())),
        *(("/abs.jpg", jpeg()), ("/abs.json", page())),
        *(("other.jpg", jpeg()), ("other.json", page(boxes=[{"points": [[1, 2]], "text": 5}]))),
        *(("p000.jpg", jpeg()), ("p000.json", page())),
    ]
    make(tmp_path / "train" / "a.tar", numbered(2))
    make(tmp_path / "train" / "b.tar", wrong)
    index = reader.load(tmp_path, "train")
    assert [sample.name for sample in index.samples] == ["p000", "p001"]
    text = "\n".join(map(str, index.problems))
    assert len(index.problems) == 9
    for words in (
        "alone: has no annotation",
        "nothing: has no image",
        "b.tar/bad: ",
        "b.tar/none: ",
        "two files of a kind",
    ):
        assert words in text
    for words in ("'../out.jpg' leads out", "'/abs.jpg' leads out", "p000: occurs twice", "text"):
        assert words in text
    with pytest.raises(PageError, match="has no annotation"):
        reader.load(tmp_path, "train", strict=True)


def test_a_turned_page_counts_with_the_exif_that_its_boxes_fit(tmp_path: Path) -> None:
    tall = [{"points": [[5, 85], [60, 85], [60, 98], [5, 98]], "text": "x"}]
    make(tmp_path / "train" / "a.tar", [("t.jpg", jpeg(orientation=6)), ("t.json", page(tall)), *numbered(1)])
    assert names(tmp_path) == ["p000"]
    assert "Set exif=true" in str(reader.load(tmp_path, "train").problems[0])
    assert names(tmp_path, exif=True) == ["t", "p000"]
    assert reader.load(tmp_path, "train", exif=True).samples[0].height == 100


@pytest.mark.parametrize("cut", ["in a file", "between two files"])
def test_a_tar_that_is_cut_off_gives_what_is_before_the_cut(tmp_path: Path, cut: str) -> None:
    tar = make(tmp_path / "train" / "a.tar", numbered(3))
    with tarfile.open(tar) as opened:
        last = opened.getmembers()[4]
    os.truncate(tar, last.offset_data + 300 if cut == "in a file" else last.offset)
    index = reader.load(tmp_path, "train")
    assert [sample.name for sample in index.samples] == ["p000", "p001"]
    assert "Copy it again" in str(index.problems[-1])


def test_a_file_that_is_no_tar_or_a_packed_tar_is_refused(tmp_path: Path) -> None:
    tar = make(tmp_path / "train" / "a.tar", numbered(1))
    subprocess.run(["gzip", str(tar)], check=True, timeout=60)
    with pytest.raises(DataError, match=r"compressed tar.*gzip.*plain \.tar.*gunzip a\.tar\.gz"):
        reader.load(tmp_path, "train")
    (tar.parent / "a.tar.gz").rename(tar)
    with pytest.raises(DataError, match="compressed tar"):
        reader.load(tmp_path, "train")
    for content in (b"hello " * 1000, b""):
        tar.write_bytes(content)
        with pytest.raises(DataError, match="is not a tar"):
            reader.load(tmp_path, "train")


def extended(**records: object) -> bytes:
    """Return an extended header (POSIX.1-2001, pax) with these records, and the header of a file after it."""
    header = b""
    for key, value in records.items():
        rest = f" {key.replace('_', '.')}={value}\n".encode()
        size = next(n for n in range(len(rest), 9999) if n == len(rest) + len(str(n)))
        header += str(size).encode() + rest
    first, second = tarfile.TarInfo("x"), tarfile.TarInfo("p009.jpg")
    first.type, first.size, second.size = tarfile.XHDTYPE, len(header), 3
    header += b"\0" * (-len(header) % 512)
    return first.tobuf(tarfile.USTAR_FORMAT) + header + second.tobuf(tarfile.USTAR_FORMAT) + b"abc".ljust(512, b"\0")


@pytest.mark.parametrize("hostile", [
    extended(size=10**30),
    extended(size=-(10**6)),
    extended(size=-1536),  # back to its own beginning, for ever
    extended(GNU_sparse_map="a,b", GNU_sparse_size=7),
    extended(GNU_sparse_major=1, GNU_sparse_minor=0),
    extended(comment="x")[:1024] * 3000,
])  # fmt: skip
def test_headers_that_make_no_sense_end_the_walk_with_a_sentence(tmp_path: Path, hostile: bytes) -> None:
    tar = make(tmp_path / "train" / "a.tar", numbered(1))
    with tarfile.open(tar) as opened:
        opened.getmembers()
        good = tar.read_bytes()[: opened.offset]
    tar.write_bytes(good + hostile + bytes(1024))
    index = reader.load(tmp_path, "train")
    assert [sample.name for sample in index.samples] == ["p000"]
    text = ("has a header that makes no sense", "is cut off", "goes on after")  # Pythons differ in what they notice
    assert any(f"a.tar: {words}" in str(index.problems[-1]) for words in text)


def test_layouts(tmp_path: Path) -> None:
    for number in range(2):
        make(tmp_path / "flat" / f"train-{number:06d}.tar", numbered(1, number))
    make(tmp_path / "flat" / "val-000000.tar", numbered(1, 7))
    assert (names(tmp_path / "flat"), names(tmp_path / "flat", "val")) == (["p000", "p001"], ["p007"])
    assert reader.splits(tmp_path / "flat") == ["train", "val"]
    with pytest.raises(DataError, match="no split 'test'"):
        reader.load(tmp_path / "flat", "test")
    tar = make(tmp_path / "one" / "pages.tar", numbered(2))
    for place in (tmp_path / "one", tar):
        index = reader.load(place, "val")
        assert (len(index.samples), "no generalisation" in str(index.problems[0])) == (2, True)
    images = tmp_path / "ordinary" / "train"  # somebody's backup beside the images is not a shard
    (images / "images").mkdir(parents=True)
    (images / "gts").mkdir()
    (images / "images" / "a.jpg").write_bytes(jpeg())
    (images / "gts" / "gt_a.txt").write_text("1,1,20,1,20,20,1,20,x\n")
    make(images / "backup.tar", numbered(2))
    assert names(tmp_path / "ordinary") == ["a"]


def test_workers_get_the_file_and_not_the_pages(tmp_path: Path) -> None:
    make(tmp_path / "train" / "a.tar", numbered(4))
    samples = reader.load(tmp_path, "train").samples
    assert isinstance(samples, dataset.Samples)
    sent = pickle.dumps(samples)
    assert len(sent) < 500
    here = [name_and_pixel((samples, number)) for number in range(4)]
    assert [name for name, _ in here] == ["p000", "p001", "p002", "p003"]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(name_and_pixel, [(samples, number) for number in range(4)]) == here
    (tmp_path / "train" / "index.ocrlab").unlink()
    with pytest.raises(DataError, match="cannot be read"):
        pickle.loads(sent)
    reader.load(tmp_path, "train")
    with pytest.raises(DataError, match="rebuilt meanwhile"):
        pickle.loads(sent)


def name_and_pixel(asked: tuple[dataset.Samples, int]) -> tuple[str, int]:
    samples, number = asked
    return samples[number].name, int(reader.read_image(samples[number].image)[0, 0, 0])
