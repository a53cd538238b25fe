"""The index of shards: made anew when it must be, read only when it need not, and never believed against the tar."""

import fcntl
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ocrlab.data.annotations import PageError
from ocrlab.data.formats import reader
from ocrlab.data.shards import shard_index
from ocrlab.errors import DataError
from tests.data.shards.test_dataset import jpeg, make, names, numbered, page


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def index_id(index: Path) -> str:
    return str(json.loads(index.read_bytes().split(b"\n")[0])["id"])


def test_an_index_that_is_lost_or_stale_is_rebuilt(tmp_path: Path) -> None:
    tar = make(tmp_path / "train" / "a.tar", numbered(2))
    index = tmp_path / "train" / "index.ocrlab"
    assert names(tmp_path) == ["p000", "p001"]
    before = index_id(index)
    assert names(tmp_path) == ["p000", "p001"]
    assert index_id(index) == before  # it was only read
    make(tar, numbered(3))
    assert names(tmp_path) == ["p000", "p001", "p002"]
    make(tmp_path / "train" / "b.tar", numbered(1, 8))
    assert names(tmp_path)[-1] == "p008"
    before = index_id(index)
    os.utime(tar, ns=(1, 1))
    assert len(names(tmp_path)) == 4
    assert index_id(index) != before
    for damage in (index.read_bytes()[:-1], b"{}\n", b"", b"\x00\xff" * 400, b'{"schema": 99}\n'):
        index.write_bytes(damage)
        assert len(names(tmp_path)) == 4
    index.unlink()
    assert len(names(tmp_path)) == 4
    assert sorted(file.name for file in (tmp_path / "train").iterdir()) == ["a.tar", "b.tar", "index.ocrlab"]


def test_where_nobody_may_write_the_index_goes_to_the_cache(tmp_path, cache, monkeypatch):
    make(tmp_path / "train" / "a.tar", [*numbered(2), ("alone.jpg", jpeg())])
    real = shard_index.build

    def refuse(files, out, progress=None):  # type: ignore[no-untyped-def]
        if out.parent == tmp_path / "train":
            raise PermissionError(13, "Permission denied")
        real(files, out, progress)

    monkeypatch.setattr(shard_index, "build", refuse)
    assert names(tmp_path) == ["p000", "p001"]
    [cached] = (cache / "ocrlab" / "shards").iterdir()
    before = index_id(cached)
    index = reader.load(tmp_path, "train")
    assert [sample.name for sample in index.samples] == ["p000", "p001"]
    assert index.problems[0].file == tmp_path / "train" / "a.tar" / "alone"
    assert index_id(cached) == before
    assert not (tmp_path / "train" / "index.ocrlab").exists()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "train" / "a.tar" / "no"))
    with pytest.raises(DataError, match="index of .* cannot be written"):
        reader.load(tmp_path, "train")


def test_a_tar_that_is_written_anew_below_a_training_gives_no_other_pages(tmp_path: Path) -> None:
    tar = make(tmp_path / "train" / "a.tar", numbered(3))
    samples = reader.load(tmp_path, "train").samples
    image = samples[2].image
    make(tar, [("p.jpg", jpeg(9, (400, 300))), ("p.json", page())])
    with pytest.raises(PageError, match="rewritten|cut off"):
        samples[2]
    with pytest.raises(PageError, match="rewritten|cut off"):
        reader.read_image(image)
    tar.unlink()
    with pytest.raises(PageError, match="No such file"):
        samples[0]


def test_of_processes_that_begin_together_only_the_first_builds_the_index(tmp_path, monkeypatch):
    tar = make(tmp_path / "train" / "a.tar", numbered(2))
    with ThreadPoolExecutor(1) as pool:
        lock = os.open(tar.parent, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            other = pool.submit(names, tmp_path)
            time.sleep(0.3)
            assert not other.done() and [file.name for file in tar.parent.iterdir()] == ["a.tar"]
            shard_index.build([tar], tar.parent / "index.ocrlab")
            monkeypatch.setattr(shard_index, "build", None)
        finally:
            os.close(lock)
        assert other.result(60) == ["p000", "p001"]
