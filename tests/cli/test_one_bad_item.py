"""One bad item of a stream costs itself: its neighbours are read, it is counted, and the exit status says so."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

LOG = "RuntimeError: CUDA error: an illegal memory access was encountered"


def ocrlab(*words: str | Path, cwd: Path, stdin: bytes = b"", **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, in the plain locale of a container."""
    command = [sys.executable, "-m", "ocrlab", *map(str, words)]
    done = subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, timeout=200, env={**os.environ, **more})
    return subprocess.CompletedProcess(command, done.returncode, done.stdout.decode(), done.stderr.decode())


def test_pages_beside_bad_ones_are_predicted(root: Path, tmp_path: Path) -> None:
    images = sorted((root / "data_samples/val/images").iterdir())[:2]
    cv2.imwrite(str(tmp_path / "a-long.png"), np.full((65_501, 64, 3), 255, np.uint8))
    shutil.copy(images[0], tmp_path / "b.jpg")
    shutil.copy(images[1], tmp_path / "d.jpg")
    (tmp_path / "empty").mkdir()
    listed = b"a-long.png\nb.jpg\nb\0ad.jpg\nempty\n\nnot-there.jpg\n" + b"x" * 5000 + b"\nd.jpg\n"
    done = ocrlab("predict", "-", "--json", cwd=tmp_path, stdin=listed)
    record = json.loads(done.stdout)
    assert [page["image"] for page in record["predictions"]] == ["a-long.png", "b.jpg", "d.jpg"]
    assert all(page["detections"] for page in record["predictions"][1:])
    assert [bad.split(":")[0] for bad in record["left_out"]] == [
        *(r"b\x00ad.jpg", "empty", "not-there.jpg", "line 7 of stdin")
    ]
    assert done.returncode == 1, "four are left out"
    overlay = cv2.imread(str(tmp_path / "found/a-long.overlay.jpg"))
    assert overlay.shape[0] == 65_500, "as long as a JPEG can be"


def test_a_report_with_half_a_surrogate_pair_is_a_report(tmp_path: Path) -> None:
    rows = [json.dumps({"log": LOG, "id": "a"}), r'{"log":"x","id":"\ud800"}', json.dumps({"log": LOG, "id": "c"})]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    for locale in ("C", "C.UTF-8"):
        done = ocrlab("diagnose", "--jsonl", "rows.jsonl", cwd=tmp_path, LC_ALL=locale)
        verdicts = [json.loads(line) for line in done.stdout.splitlines()]
        assert [verdict["id"] for verdict in verdicts] == ["a", "\ud800", "c"]
        assert verdicts[0]["causes"] and verdicts[2]["causes"]
        assert done.returncode == 0, done.stderr


def test_a_line_above_the_bound_costs_itself_only(tmp_path: Path) -> None:
    rows = [json.dumps({"log": log, "id": name}) for log, name in ((LOG, "a"), (LOG * 160_000, "b"), (LOG, "c"))]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    done = ocrlab("diagnose", "--jsonl", "rows.jsonl", cwd=tmp_path)
    first, bad, last = (json.loads(line) for line in done.stdout.splitlines())
    assert (first["id"], last["id"], done.returncode) == ("a", "c", 1) and first["causes"] == last["causes"] != []
    assert bad["missing"][0].startswith("line 2 is not a report: it is longer than 10,000,000 bytes")


@pytest.fixture(scope="session")
def shards(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of shards: train of three tars, val of one."""
    place = tmp_path_factory.mktemp("sharded")
    done = ocrlab("samples", "convert", root / "data_samples", "all", "--to", "shards", cwd=place)
    assert done.returncode == 0, done.stderr
    for number in range(3):
        shutil.copy(place / "all/val/000000.tar", place / f"all/train/00000{number}.tar")
    for index in place.rglob("*.ocrlab"):
        index.unlink()
    return place / "all"


@pytest.mark.parametrize("keep", [0.5, 300])
def test_what_a_cut_shard_loses_is_counted(shards: Path, tmp_path: Path, keep: float) -> None:
    """Also one of which not even the first header is whole: the other tars of its split are read."""
    data = tmp_path / "data"
    shutil.copytree(shards, data)
    for number in (1, 2):
        (data / f"train/00000{number}.tar").unlink()
    cut = data / "train/000000.tar"
    shutil.copy(cut, data / "train/000001.tar")
    os.truncate(cut, int(keep * cut.stat().st_size) if keep < 1 else int(keep))
    done = ocrlab("samples", "convert", "data", "out", "--to", "jsonl", "--json", cwd=tmp_path)
    record = json.loads(done.stdout)
    assert done.returncode == 1, "pages are lost"
    assert record["pages"] == {"train": 16, "val": 16}, "those of the whole tar, and what the cut one still has"
    assert any(what.startswith("shards that cannot be read to their end") for what in record["lost"])
    assert any("000000.tar" in problem for problem in record["problems"])
    assert len((tmp_path / "out/train.jsonl").read_text().splitlines()) == 16
    done = ocrlab("samples", "show", "data", "--json", cwd=tmp_path)
    assert done.returncode == 1 and json.loads(done.stdout)["pages"] == 16


def test_a_compressed_shard_beside_plain_ones_is_counted(shards: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(shards, data)
    plain = data / "train/000002.tar"
    (data / "train/000002.tar.gz").write_bytes(gzip.compress(plain.read_bytes(), 1))
    plain.unlink()
    done = ocrlab("samples", "convert", "data", "out", "--to", "jsonl", "--json", cwd=tmp_path)
    record = json.loads(done.stdout)
    assert done.returncode == 1 and record["pages"] == {"train": 16, "val": 16}
    assert any(what.startswith("shards that cannot be read to their end") for what in record["lost"])
    assert sum("000002.tar.gz: is left out: it is compressed" in problem for problem in record["problems"]) == 1
    done = ocrlab("samples", "show", "data", "--json", cwd=tmp_path)
    assert done.returncode == 1 and "000002.tar.gz" in done.stdout


def test_an_archive_beside_what_was_unpacked_from_it_is_no_shard(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "data_samples/val", tmp_path / "data/val")
    (tmp_path / "data/all.tar.gz").write_bytes(gzip.compress(b"x"))
    done = ocrlab("samples", "convert", "data", "out", "--to", "jsonl", "--json", cwd=tmp_path)
    assert (done.returncode, json.loads(done.stdout)["pages"]) == (0, {"val": 16})
    shutil.rmtree(tmp_path / "data/val")
    done = ocrlab("samples", "convert", "data", "new", "--to", "jsonl", "--json", cwd=tmp_path)
    assert done.returncode == 1 and "all.tar.gz is a compressed tar. Given: gzip" in done.stderr


def test_a_note_is_not_a_loss(root: Path, tmp_path: Path) -> None:
    """A folder without splits has a note: the same pages are every split."""
    shutil.copytree(root / "data_samples/val", tmp_path / "pages")
    done = ocrlab("samples", "show", "pages", "--split", "test", "--json", cwd=tmp_path)
    record = json.loads(done.stdout)
    assert "same pages as every other split" in record["problems"][0]
    assert done.returncode == 0
    (tmp_path / "pages/images").joinpath(sorted(os.listdir(tmp_path / "pages/images"))[0]).write_bytes(b"no image")
    done = ocrlab("samples", "show", "pages", "--split", "test", "--json", cwd=tmp_path)
    assert (done.returncode, json.loads(done.stdout)["pages"]) == (1, record["pages"] - 1)
