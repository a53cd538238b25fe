"""Shards are written so that others read them, in bounded files, the same bytes each time; and come back the same."""

import json
import tarfile

import numpy as np
import pytest

from ocrlab.data import audit
from ocrlab.data.audit import repaired_copy
from ocrlab.data.formats import reader
from ocrlab.data.formats.convert import convert
from ocrlab.data.shards import writer
from ocrlab.debug.flight_record import ring_reader
from ocrlab.errors import DataError
from ocrlab.training import loop
from tests.training.test_loop import losses, pages, tiny  # noqa: F401  # a fixture among them


def test_samples_are_the_same_by_every_way(root, tmp_path) -> None:
    result = convert(root / "data_samples", tmp_path / "shards", "shards", splits=["val"])
    assert (result.pages, result.problems) == ({"val": 16}, [])
    plain = {sample.name: sample for sample in reader.load(root / "data_samples", "val").samples}
    packed = reader.load(tmp_path / "shards", "val").samples
    assert [sample.name for sample in packed] == sorted(plain)
    for sample in packed:
        other = plain[sample.name]
        assert (sample.texts, sample.width, sample.height) == (other.texts, other.width, other.height)
        np.testing.assert_array_equal(sample.ignored, other.ignored)
        for polygon, two in zip(sample.polygons, other.polygons, strict=True):
            np.testing.assert_array_equal(polygon, two)
        assert sample.image.read_bytes() == other.image.read_bytes()


def test_tars_are_bounded_and_the_same_bytes_each_time(root, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(writer, "LIMIT", 300_000)
    for name in ("one", "two"):
        convert(root / "data_samples", tmp_path / name, "shards", splits=["val"])
    tars = sorted((tmp_path / "one" / "val").glob("*.tar"))
    assert len(tars) > 2
    assert [tar.name for tar in tars] == [f"{number:06d}.tar" for number in range(len(tars))]
    for tar in tars:
        assert tar.stat().st_size < 300_000 + tarfile.RECORDSIZE
        assert tar.read_bytes() == (tmp_path / "two" / "val" / tar.name).read_bytes()
    with tarfile.open(tars[0]) as opened:
        first, second, *_ = opened.getmembers()
        assert (first.name, second.name) == ("receipt_000.jpg", "receipt_000.json")
        assert (first.mtime, first.uid, first.uname, first.mode) == (0, 0, "", 0o644)
        file = opened.extractfile(second)
        assert file is not None
        assert json.loads(file.read()).keys() == {"image", "width", "height", "boxes"}
    assert len(reader.load(tmp_path / "one", "val").samples) == 16


def test_a_page_larger_than_a_tar_gets_its_own(root, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(writer, "LIMIT", 10)
    convert(root / "data_samples", tmp_path / "shards", "shards", splits=["val"])
    assert len(list((tmp_path / "shards" / "val").glob("*.tar"))) == 16


@pytest.mark.parametrize("images", ["link", "none"])
def test_images_can_only_be_copied(root, tmp_path, images: str) -> None:
    with pytest.raises(DataError, match="hold the images themselves"):
        convert(root / "data_samples", tmp_path / "shards", "shards", images=images)  # type: ignore[arg-type]
    convert(root / "data_samples", tmp_path / "shards", "shards", splits=["val"])
    if images == "link":
        with pytest.raises(DataError, match="cannot be linked to"):
            convert(tmp_path / "shards", tmp_path / "back", "icdar", images="link")
    else:
        assert convert(tmp_path / "shards", tmp_path / "back", "jsonl", images="none").pages == {"val": 16}


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_training_on_shards_is_training_on_files(pages, runs, tmp_path, workers: int) -> None:  # noqa: F811
    """Same pages in the same order, to the last bit of the loss, also when it goes on after its last checkpoint."""
    convert(pages, tmp_path / "shards", "shards")
    more = ("tracking=disabled", "trainer.val_pages=1", f"runtime.workers={workers}")
    plain = loop.fit(tiny(pages, runs, *more))
    packed = loop.fit(tiny(tmp_path / "shards", runs, *more))
    assert losses(plain.folder) == losses(packed.folder)
    assert len(losses(plain.folder)) == 4
    assert plain.metrics["hmean@0.5"] == packed.metrics["hmean@0.5"]
    recorded = [step.samples for step in ring_reader.read_ring(ring_reader.find_rings(packed.folder)[0]).steps]
    assert recorded == [step.samples for step in ring_reader.read_ring(ring_reader.find_rings(plain.folder)[0]).steps]
    assert {name for names in recorded for name in names} == {"p0", "p1", "p2"}


def test_the_data_doctor_sees_the_same_in_shards(root, tmp_path) -> None:
    convert(root / "data_samples", tmp_path / "shards", "shards", splits=["val"])
    plain, packed = (audit.check(place, ["val"]) for place in (root / "data_samples", tmp_path / "shards"))
    assert [(finding.kind, finding.page, finding.box) for finding in packed] == [
        (finding.kind, finding.page, finding.box) for finding in plain
    ]
    done = repaired_copy.copy(tmp_path / "shards", tmp_path / "clean", packed, ["val"])
    assert done.pages == 16
    assert len(reader.load(tmp_path / "clean", "val").samples) == 16
