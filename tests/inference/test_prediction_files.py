"""From files to files: what is a page, what is written, and what is never written over."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest

from ocrlab.data.annotations import Problem
from ocrlab.errors import DataError
from ocrlab.inference import prediction_files
from ocrlab.inference.prediction_files import FORMATS, collect, predict_files
from ocrlab.records import Prediction


def names(paths) -> list[str]:
    return [path.name for path in paths]


def test_all_formats_in_order(detector, scans, tmp_path):
    out = tmp_path / "new" / "found"
    results = list(predict_files(detector, collect([scans]), out, FORMATS))
    assert [len(result.page.detections) for result in results] == [1, 2, 3]
    assert sorted(names(out.iterdir())) == sorted(
        f"p{i}{end}" for i in (1, 2, 3) for end in prediction_files.ENDINGS.values()
    )
    assert names(results[0].written) == ["p1.json", "p1.txt", "p1.overlay.jpg"]
    record = json.loads((out / "p3.json").read_text())
    assert record == results[2].record()
    assert (record["schema"], record["image"], record["file"]) == (1, "p3.png", str(scans / "p3.png"))
    assert len((out / "p3.txt").read_text().splitlines()) == 3
    picture, plain = cv2.imread(str(out / "p2.overlay.jpg")), cv2.imread(str(scans / "p2.png"))
    assert picture.shape == plain.shape and (np.abs(picture.astype(int) - plain).max(axis=2) > 60).any()


def test_the_same_name_twice_is_two_files(detector, scans, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "p1.png").write_bytes((scans / "p3.png").read_bytes())
    out = tmp_path / "out"
    for _ in range(2):
        list(predict_files(detector, [scans / "p1.png", other / "p1.png"], out))
    read = {path.name: json.loads(path.read_text()) for path in out.iterdir()}
    assert sorted(read) == ["p1-2.json", "p1-3.json", "p1-4.json", "p1.json"]
    assert [len(read[f"p1{n}.json"]["detections"]) for n in ("", "-2", "-3", "-4")] == [1, 3, 1, 3]
    assert read["p1-2.json"]["file"] == str(other / "p1.png"), "the file says which page it is"


def test_another_process_in_the_same_folder_loses_nothing(tmp_path, monkeypatch):
    """It makes its file after we looked and before we write."""
    monkeypatch.setattr(os.path, "lexists", lambda path: False)
    (tmp_path / "p.txt").write_text("theirs")
    writes = {ending: lambda path: path.write_text("ours") for ending in (".json", ".txt")}
    assert names(prediction_files.place(writes, tmp_path, "p")) == ["p-2.json", "p-2.txt"]
    assert sorted(names(tmp_path.iterdir())) == ["p-2.json", "p-2.txt", "p.txt"]
    assert (tmp_path / "p.txt").read_text() == "theirs"


def test_a_full_disk_leaves_no_part(tmp_path):
    def write(path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        prediction_files.create(tmp_path / "a.json", write)
    assert list(tmp_path.iterdir()) == []


def test_a_bad_page_is_reported_and_the_rest_goes_on(detector, scans, tmp_path):
    (scans / "p2.png").write_bytes(b"no image")
    results = list(predict_files(detector, collect([scans]), tmp_path / "out"))
    assert [type(result.page) for result in results] == [Prediction, Problem, Prediction]
    record = results[1].record()
    assert record["image"] == "p2.png" and "not an image" in record["error"] and record["schema"] == 1
    assert sorted(names((tmp_path / "out").iterdir())) == ["p1.json", "p3.json"]


def test_stopped_in_the_middle_leaves_whole_files(detector, scans, tmp_path):
    results = predict_files(detector, collect([scans] * 1), tmp_path / "out", FORMATS)
    next(results)
    results.close()
    assert sorted(names((tmp_path / "out").iterdir())) == ["p1.json", "p1.overlay.jpg", "p1.txt"]


def test_bombs_and_cut_files_are_bad_pages(detector, scans):
    header = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    header = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    (scans / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + header + struct.pack(">I", 0) + b"IDAT\x35\xaf\x06\x1e")
    (scans / "picture.png").write_bytes(b"P6 60000 60000 255\n")
    (scans / "cut.png").write_bytes((scans / "p1.png").read_bytes()[:-30])
    (scans / "empty.jpg").touch()
    results = {result.file.name: result.page for result in predict_files(detector, collect([scans]))}
    bad = {name for name, page in results.items() if isinstance(page, Problem)}
    assert bad == {"bomb.png", "picture.png", "cut.png", "empty.jpg"}
    assert "too large" in results["bomb.png"].message and "empty" in results["empty.jpg"].message


def test_folders(scans, tmp_path):
    inner = scans / "deeper" / "still"
    inner.mkdir(parents=True)
    for name in ("b.JPG", "a.tiff", ".hidden.png", "._b.jpg", "b.overlay.jpg", "notes.txt"):
        (inner / name).touch()
    (scans / ".cache").mkdir()
    (scans / ".cache" / "c.png").touch()
    assert names(collect([scans])) == ["a.tiff", "b.JPG", "p1.png", "p2.png", "p3.png"]
    named = [scans / "p2.png", scans, inner / "b.overlay.jpg"]
    assert names(collect(named)) == ["p2.png", "a.tiff", "b.JPG", "p1.png", "p3.png", "b.overlay.jpg"], "each once"
    with pytest.raises(DataError, match="[Nn]o such file"):
        collect([tmp_path / "gone"])
    (tmp_path / "bare").mkdir()
    with pytest.raises(DataError, match="No image"):
        collect([tmp_path / "bare"])


def test_links_to_folders_are_not_followed_and_loops_end(scans, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "far.png").write_bytes((scans / "p1.png").read_bytes())
    (scans / "again").symlink_to(scans)
    (scans / "up").symlink_to("..")
    (scans / "near.png").symlink_to(elsewhere / "far.png")
    (scans / "self.png").symlink_to("self.png")
    (scans / "gone.png").symlink_to("nowhere.png")
    (scans / "same.png").symlink_to("p1.png")
    # gone.png and self.png lead nowhere, which is reported when they are read
    there = collect([scans])
    [out] = [page for page in there if isinstance(page, Problem)]
    assert (out.file, "leaves the data folder" in out.message) == (scans / "near.png", True)
    rest = [page for page in there if page != out]
    assert names(rest) == ["gone.png", "p1.png", "p2.png", "p3.png", "same.png", "self.png"]
    assert len(collect([scans / "again"])) == len(there), "one that is named is"
    assert names(collect([scans / "near.png"])) == ["near.png"], "one that is named is"
    with pytest.raises(DataError, match=r"self\.png"):
        collect([scans / "self.png"])


STREAM = """
import itertools, json, sys
from ocrlab.cli import main
from ocrlab.inference import Detector, prediction_files as files
from ocrlab.config.schema import Config
from ocrlab.inference import page_inference as pages
import ocrlab.inference, torch
class Dark(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = torch.nn.Parameter(torch.zeros(1))
    def probability(self, images): return (images.float().mean(1, keepdim=True) < 100).float()
dark = Detector(Dark(), Config(), False)
pages.cached_fused = lambda model, **_: model
Detector.load = classmethod(lambda *_, **__: dark)
files.collect = lambda paths: list(paths) * 100_000
sys.exit(main(["predict", sys.argv[1], "--jsonl", "lines.jsonl", "--out", "out", "--device", "cpu"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_run_that_is_ended_leaves_whole_lines_and_files(scans, tmp_path, number, status):
    command = [sys.executable, "-c", STREAM, str(scans / "p3.png")]
    child = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    lines = tmp_path / "lines.jsonl"
    while not (lines.exists() and lines.read_bytes().count(b"\n") > 20) and time.monotonic() < deadline:
        assert child.poll() is None
        time.sleep(0.02)
    child.send_signal(number)
    assert child.wait(timeout=60) == status
    record = lines.read_text()
    assert record.endswith("\n")
    assert all(len(json.loads(line)["detections"]) == 3 for line in record.splitlines())
    left = [path for path in (tmp_path / "out").iterdir() if not path.name.startswith(".")]
    assert len(left) > 40
    for path in left:
        if path.suffix == ".json":
            assert len(json.loads(path.read_text())["detections"]) == 3
        elif path.suffix == ".txt":
            assert path.read_text().count("\n") == 3
        else:
            assert path.read_bytes()[-2:] == b"\xff\xd9"
    if number != signal.SIGKILL:
        assert not list((tmp_path / "out").glob(".*"))


def test_what_cannot_be_read_in_a_folder_is_reported(detector, scans, tmp_path, monkeypatch):
    (scans / "gone.png").symlink_to("nowhere.png")
    (scans / "round.png").symlink_to("round.png")
    os.mkfifo(scans / "pipe.png")
    (scans / "closed").mkdir()
    real = os.scandir

    def scandir(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    results = list(predict_files(detector, collect([scans])))
    left = [result.file.name for result in results if isinstance(result.page, Problem)]
    assert left == ["closed", "gone.png", "round.png"], "nobody waits for the pipe"
    assert len(results) == 6
