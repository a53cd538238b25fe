"""Files, names and settings that a stranger could give a command: one clear error each, and nothing hangs."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from ocrlab.cli import main

HOSTILE = "a\nocrlab: done\x1b[31m\u202e\x9b"
SHOWN = r"a\nocrlab: done\x1b[31m\u202e\x9b"


def write_page(folder: Path, name: str = "a", split: str = "train", label: str = "9,9,50,9,50,30,9,30,Total") -> None:
    for sub in ("images", "gts"):
        (folder / split / sub).mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(folder / split / "images/x.png"), np.full((64, 64, 3), 255, np.uint8))
    (folder / split / "images/x.png").rename(folder / split / f"images/{name}.png")
    (folder / split / f"gts/{name}.txt").write_text(label)


@pytest.mark.parametrize(
    "words",
    [
        ["train", "data={D}"], ["train", "{C}"], ["train", "{D}x=1"],
        ["evaluate", "--oracle", "{D}", "split=train"], ["predict", "{D}/train/images"],
        ["samples", "check", "{D}"], ["samples", "show", "{D}"],
        ["samples", "convert", "{D}", "OUT", "--to", "icdar"], ["samples", "make", "{C}"],
        ["diagnose", "{D}/missing"], ["diagnose", "{C}"], ["runs", "{D}/missing"],
        ["report", "html", "{C}"], ["report", "bug", "{C}"], ["replay", "{D}"], ["bisect", "{D}"],
        ["memory", "fit", "data={D}/missing"], ["watch", "--", "./{D}/missing"],
        ["doctor", "--python", "{D}"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_name_is_shown_and_not_obeyed(tmp_path, monkeypatch, capfd, words):
    monkeypatch.chdir(tmp_path)
    write_page(Path(HOSTILE), HOSTILE, label="garbage")
    Path(HOSTILE, f"train/images/{HOSTILE}2.png").write_text("no image")
    Path(f"{HOSTILE}.yaml").write_text("a: [")
    main([word.format(D=HOSTILE, C=f"{HOSTILE}.yaml") for word in words])
    out, err = capfd.readouterr()
    assert SHOWN in out + err or words[0] in ("diagnose", "samples", "doctor")
    for raw in ("\nocrlab: done", "\x1b[31m", "\u202e", "\x9b"):
        assert raw not in out + err


def pipe(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def itself(path: Path) -> None:
    path.symlink_to(path.name)


def data(make: Callable[[Path], None], place: str) -> Callable[[Path], None]:
    def fill(path: Path) -> None:
        for split in ("train", "val"):
            write_page(path, split=split)
            (path / split / place).unlink()
            make(path / split / place)

    return fill


def text(content: str | bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content.encode() if isinstance(content, str) else content) and None


ALIASES = "a: &a0 [x]\n" + "".join(f"b{n}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(1000))
INPUTS: dict[str, tuple[Callable[[Path], None], list[str], str]] = {
    "data is a pipe": (pipe, ["train", "data=X"], "X is not a data set|does not exist"),
    "data is a link to itself": (itself, ["train", "data=X"], "does not exist"),
    "data is a device": (zeros, ["train", "data=X"], "does not exist|is not a data set"),
    "images are pipes": (data(pipe, "images/a.png"), ["evaluate", "--oracle", "X"], "pipe, not a regular file"),
    "labels are pipes": (data(pipe, "gts/a.txt"), ["evaluate", "--oracle", "X"], "pipe, not a regular file"),
    "labels are devices": (data(zeros, "gts/a.txt"), ["evaluate", "--oracle", "X"], "leaves the data folder"),
    "a config is a folder": (Path.mkdir, ["train", "X"], "has no config|Is a directory|is neither"),
    "a config is a pipe": (pipe, ["memory", "estimate", "X"], "a pipe, not a regular file"),
    "a config is binary": (text(b"\x90\xff\0" * 99), ["train", "X"], "cannot be read. Given: 'utf-8' codec"),
    "a config has a NUL": (text("seed: 1\0\n"), ["train", "X"], r"is not YAML. Given: unacceptable character #x0000"),
    "a config is large": (text("k: v\n" * 10**6), ["train", "X"], "too large: 5,000,000 bytes, at most 500,000"),
    "a config has aliases": (text(ALIASES), ["bisect", "X"], "line 2 refers to an anchor"),
    "a config is deep": (text("[" * 100_000), ["train", "X"], "is not YAML. Given: maximum recursion"),
    "a config is empty": (text(""), ["bisect", "X"], "sets nothing beside the defaults. Needed: a training that fails"),
    "weights are a pipe": (pipe, ["train", "data=D", "weights=X"], "There is no checkpoint"),
    "weights are text": (text("hello"), ["train", "data=D", "weights=X"], "cannot be read as a checkpoint"),
    "a limit is endless": (text(""), ["memory", "fit", "data=D", "--limit=1e400"], "must be a positive number"),
    "a notebook is deep": (text("[" * 100_000), ["run", "X"], "is not a notebook. Given: RecursionError"),
    "a notebook has a cell 7": (text('{"cells": [7], "nbformat": 4, "metadata": {}}'), ["run", "X"], "not a notebook"),
    "a notebook is a pipe": (pipe, ["run", "X"], "is not a notebook|There is no notebook|pipe"),
    "runs is a file": (text("x"), ["train", "data=D", "runs=X"], "A run folder cannot be made in X"),
}


@pytest.mark.parametrize("what", INPUTS)
def test_a_hostile_input_has_one_clear_error(tmp_path, monkeypatch, capfd, what):
    monkeypatch.chdir(tmp_path)
    make, words, says = INPUTS[what]
    name = "X" + {"weights": ".ckpt", "a confi": ".yaml", "a noteb": ".ipynb"}.get(what[:7], "")
    make(Path(name))
    for split in ("train", "val"):
        write_page(Path("D"), split=split)
    Path("loop").symlink_to("loop")  # beside it, which used to break every proposal of a name
    status = main([word.replace("X", name) for word in words])
    err = capfd.readouterr().err
    assert status in (1, 2)
    assert re.search(says, err), err
    assert err.count("ocrlab: ") == 1 and "Traceback" not in err and "OCRLAB_TRACEBACK" not in err


def test_pages_of_which_none_exists_are_not_all_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.jsonl").write_text("".join(f'{{"image": "p{n}.jpg", "boxes": []}}\n' for n in range(30_000)))
    assert main(["evaluate", "--oracle", str(tmp_path), "split=train"]) == 1
    assert "Given: 10,000 bad pages, the first being" in capfd.readouterr().err
