"""A pipe, a device, a socket or a link out of a folder under the name of a file: named, left out, never waited for."""

import json
import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.commands import run_each

ROOT = Path(__file__).parents[2]
SECONDS = 60  # that no command takes on these; one that waits for a pipe is ended
MEMORY = 6 << 30  # bytes of address space
COMMANDS = (
    "diagnose PIPE", "diagnose --jsonl PIPE", "diagnose PIPE.ipynb", "diagnose LOGS", "diagnose RUN",
    "report bug PIPE --out new/bug.md", "report bug PIPE.ipynb --out new/bug.md",
    "report bug RUN --out new/bug.md", "report html PIPE.ipynb --out new.html",
    "report html pictures.ipynb --out new.html", "memory why PIPE", "memory why RUN", "runs .",
    "replay RUN", "bisect RUN", "bisect PIPE", "bisect --factor a=PIPE.yaml:PIPE.yaml -- true {a}",
    "bisect --samples list=PIPE -- true {list}", "kernel --ncu PIPE", "run PIPE.ipynb",
    "samples check DATA --out new", "samples check PIPE.json --out new",
    "samples show DATA --out new.png", "samples convert DATA new --to coco",
    "samples convert PIPE.json new --to coco", "samples convert TARS new --to coco", "train PIPE.yaml",
    "train --resume RUN", "memory fit PIPE.yaml",
    "evaluate --predictions PIPE.jsonl data=DATA split=train",
    "evaluate --predictions PREDICTIONS data=DATA split=train",
    "evaluate --oracle DATA --split train --config PIPE.yaml",
)  # fmt: skip
WITH_TORCH = (
    "predict DATA/train/images PIPE.jpg --out new --device cpu",
    "predict DATA/train/images/a.jpg --checkpoint PIPE.ckpt --out new --device cpu",
    "evaluate --checkpoint receipts data=DATA split=train",
    "export onnx --checkpoint PIPE.ckpt --out new.onnx",
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder in which most files are pipes; in DATA one page is whole."""
    for name in ("PIPE", *(f"PIPE.{end}" for end in ("ipynb", "json", "jsonl", "yaml", "ckpt", "jpg"))):
        os.mkfifo(tmp_path / name)
    source, words = page()
    data = tmp_path / "DATA" / "train"
    (data / "images").mkdir(parents=True)
    (data / "gts").mkdir()
    for name in ("a", "pipe", "zero", "out", "words"):
        shutil.copyfile(words, data / "gts" / f"gt_{name}.txt")
        shutil.copyfile(source, data / "images" / f"{name}.jpg")
    replace(data / "images" / "pipe.jpg", os.mkfifo)
    replace(data / "images" / "zero.jpg", lambda path: path.symlink_to("/dev/zero"))
    replace(data / "images" / "out.jpg", lambda path: path.symlink_to(source))
    replace(data / "gts" / "gt_words.txt", os.mkfifo)
    run = tmp_path / "RUN"
    for name in ("flight/batches", "incident", "checkpoints"):
        (run / name).mkdir(parents=True)
    for name in (
        *(
            "config.yaml",
            "environment.json",
            "metrics.csv",
            "train.log",
            "checkpoints/last.ckpt",
            "flight/cells-0.json",
        ),
        *("flight/program.json", "flight/process.json", "flight/ring-0-0.bin", "flight/snapshot-0-0-0.pt"),
        *("flight/learned-0.json", "flight/replay.json", "flight/stacks.txt", "incident/verdict.json"),
        *("incident/log_tail.txt", "incident/facts.json", "incident/traceback.txt", ".FAILURE"),
    ):
        os.mkfifo(run / name)
    (tmp_path / "LOGS").mkdir()
    os.mkfifo(tmp_path / "LOGS" / "train.log")
    (tmp_path / "TARS").mkdir()
    os.mkfifo(tmp_path / "TARS" / "000000.tar")
    (tmp_path / "PREDICTIONS").mkdir()
    os.mkfifo(tmp_path / "PREDICTIONS" / "a.json")
    os.mkfifo(tmp_path / "picture.png")
    cell = {"cell_type": "markdown", "metadata": {}, "source": "# Words\n\n![a](picture.png) ![b](/dev/zero)"}
    content = {"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": [cell]}
    (tmp_path / "pictures.ipynb").write_text(json.dumps(content), encoding="utf-8")
    return tmp_path


def page() -> tuple[Path, Path]:
    folder = ROOT / "data_samples" / "train"
    image = min((folder / "images").glob("*.jpg"))
    return image, folder / "gts" / f"gt_{image.stem}.txt"


def replace(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def start(place: Path, command: str) -> SimpleNamespace:
    (done,) = run_each([command], place, place / f"notes-{uuid.uuid4()}", seconds=SECONDS, memory=MEMORY).values()
    return done


@pytest.mark.parametrize("commands", [COMMANDS, pytest.param(WITH_TORCH, marks=pytest.mark.slow)])
def test_no_command_waits_for_a_pipe(place: Path, tmp_path: Path, commands: tuple[str, ...]) -> None:
    for command, done in run_each(commands, place, tmp_path / "notes", seconds=3 * SECONDS, memory=MEMORY).items():
        assert done.returncode in (0, 1, 2), (command, done.stderr)
        assert "Traceback" not in done.stderr and "OCRLAB_TRACEBACK" not in done.stderr, (command, done.stderr)
        assert done.stdout or done.stderr, command


def test_the_whole_page_is_read_and_each_other_one_named(place: Path) -> None:
    """`ln -s OUTSIDE/c.jpg D/train/images/c.jpg` is not a page, and no way to another person's pictures."""
    done = start(place, "samples convert DATA new --to coco")
    assert [path.name for path in (place / "new").rglob("*.jpg")] == ["a.jpg"]
    for words in (
        "pipe.jpg: cannot be read. Given: it is a pipe",
        "zero.jpg: is a link that leaves the data folder",
        "out.jpg: is a link that leaves the data folder",
        "gt_words.txt: cannot be read. Given: it is a pipe",
    ):
        assert words in done.stdout + done.stderr


SLOW = pytest.mark.slow


@pytest.mark.parametrize("how", ["link", pytest.param("copy", marks=SLOW)])
@pytest.mark.parametrize("layout", ["pairs", "labelme", "json", "set", "loose", "tars"])
def test_no_layout_lets_a_link_out_of_the_data_folder(tmp_path: Path, layout: str, how: str) -> None:
    outside, data = tmp_path / "outside", tmp_path / "data"
    outside.mkdir()
    source, _ = page()
    shutil.copyfile(source, outside / "c.jpg")
    content = {"image": "c.jpg", "boxes": []}
    (outside / "c.json").write_text(json.dumps(content), encoding="utf-8")
    (outside / "gt_c.txt").write_text("1,1,9,1,9,9,1,9,secret\n", encoding="utf-8")
    if layout == "pairs":
        (data / "train" / "gts").mkdir(parents=True)
        (data / "train" / "images").mkdir()
        (data / "train" / "images" / "c.jpg").symlink_to(outside / "c.jpg")
        (data / "train" / "gts" / "gt_c.txt").write_text("", encoding="utf-8")
        shutil.copyfile(source, data / "train" / "images" / "words.jpg")
        (data / "train" / "gts" / "gt_words.txt").symlink_to(outside / "gt_c.txt")
    elif layout in ("labelme", "json"):
        (data / "train").mkdir(parents=True)
        (data / "train" / "c.jpg").symlink_to(outside / "c.jpg")
        content = {"shapes": [], "imagePath": "c.jpg"} if layout == "labelme" else content
        (data / "train" / "c.json").write_text(json.dumps(content), encoding="utf-8")
    elif layout == "set":
        data.mkdir()
        shutil.copyfile(source, data / "c.jpg")
        (data / "train.json").symlink_to(outside / "c.json")
    elif layout == "loose":
        data.mkdir()
        (data / "c.jpg").symlink_to(outside / "c.jpg")
        (data / "gt_c.txt").symlink_to(outside / "gt_c.txt")
    else:
        (data / "train").mkdir(parents=True)
        subprocess.run(["tar", "cf", "000000.tar", "c.jpg", "c.json"], cwd=outside, check=True)
        (data / "train" / "000000.tar").symlink_to(outside / "000000.tar")
    check = "samples check data --out sheets --clean clean --json"
    commands = [f"samples convert data new --to coco --images {how}", check]
    done, checked = run_each(commands, tmp_path, tmp_path / "notes", seconds=SECONDS, memory=MEMORY).values()
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "leaves the data folder" in done.stderr
    assert "leaves the data folder" in checked.stdout
    assert not [*(tmp_path / "new").rglob("*.jpg"), *(tmp_path / "clean").rglob("*.jpg")]
    assert "secret" not in "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "clean").rglob("*.txt"))


def test_a_socket_under_the_name_of_a_page_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(place)  # a socket has a short path
        server.bind("DATA/train/images/socket.jpg")
        shutil.copyfile("DATA/train/gts/gt_a.txt", "DATA/train/gts/gt_socket.txt")
        done = start(place, "samples convert DATA new --to coco")
    assert "socket.jpg: cannot be read. Given: it is a socket" in done.stdout + done.stderr
