"""A file that is far too large, or not what its name says, costs seconds and one clear sentence."""

import json
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.commands import run_each

SECONDS, MEBIBYTES = 40, 1024  # of CPU time, the start of the interpreter included; the machine may be busy


MEASURED = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(f"\\n{used.ru_utime + used.ru_stime} {used.ru_maxrss}", file=sys.stderr)
sys.exit(status)
"""  # a process of its own: a child's peak counts that of the parent at the fork, and pytest's is large


def ocrlab(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder; it must be done in time, within 1 GiB, and without an error of its own."""
    command = [sys.executable, "-c", MEASURED, sys.executable, "-m", "ocrlab", *map(str, words)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=200)
    done.stderr, _, used = done.stderr.rstrip().rpartition("\n")
    seconds, kibibytes = map(float, used.split())
    assert seconds < SECONDS
    assert kibibytes <= MEBIBYTES * 1024
    assert "OCRLAB_TRACEBACK" not in done.stderr and "Warning" not in done.stderr, done.stderr
    return done


def page(folder: Path, name: str, text: str) -> None:
    """Write a white page and its ICDAR annotation."""
    for sub in ("images", "gts"):
        (folder / "train" / sub).mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(folder / f"train/images/{name}.png"), np.full((640, 450, 3), 255, np.uint8))
    (folder / f"train/gts/{name}.txt").write_text(text)


@pytest.mark.parametrize(("count", "what"), [
    (400, "duplicate_box"),
    pytest.param(5100, "unreadable_annotation", marks=pytest.mark.slow),
    pytest.param(20_500, "unreadable_annotation", marks=pytest.mark.slow),
])  # fmt: skip
def test_very_many_equal_boxes(tmp_path: Path, count: int, what: str) -> None:
    page(tmp_path / "data", "many", "10,10,400,10,400,500,10,500,Total\n" * count)
    page(tmp_path / "data", "good", "10,10,90,10,90,30,10,30,Total\n")
    done = ocrlab("samples", "check", "data", "--json", cwd=tmp_path)
    findings = json.loads(done.stdout)["findings"]
    mine = [finding for finding in findings if finding["page"] == "many" and finding["kind"] == what]
    assert mine and len(findings) < 3 * count
    if what == "duplicate_box":
        assert len(mine) == count - 1, "each but the first, once"


def test_a_polygon_of_very_many_points_costs_its_page(tmp_path: Path) -> None:
    page(tmp_path, "good", "")
    (tmp_path / "train/images/bad.png").write_bytes((tmp_path / "train/images/good.png").read_bytes())
    angle = np.linspace(0, 2 * np.pi, 10**5, endpoint=False)
    points = np.stack((200 + 100 * np.cos(angle), 300 + 100 * np.sin(angle)), axis=1).round(2).tolist()
    rows = [{"image": "bad.png", "boxes": [{"points": points}]}, {"image": "good.png", "boxes": []}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "train/gts/good.txt").unlink()
    (tmp_path / "train/gts").rmdir()
    (tmp_path / "train/images").rename(tmp_path / "images")
    (tmp_path / "train").rmdir()
    done = ocrlab("samples", "convert", tmp_path, tmp_path.parent / "out", "--to", "jsonl", "--json", cwd=tmp_path)
    record = json.loads(done.stdout)
    assert (done.returncode, record["pages"]) == (1, {"train": 1})
    assert "has too many points. Given: 100,000. Needed: at most 10,000" in record["problems"][0]


def test_a_bad_byte_in_json_lines_costs_its_line(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name in "abc":
        cv2.imwrite(str(tmp_path / f"images/{name}.png"), np.full((64, 64, 3), 255, np.uint8))
    lines = [json.dumps({"image": f"{name}.png", "boxes": []}).encode() for name in "abc"]
    (tmp_path / "train.jsonl").write_bytes(b"\n".join((lines[0], lines[1] + b" \xe4", lines[2])))
    done = ocrlab("samples", "show", tmp_path, "--json", cwd=tmp_path)
    record = json.loads(done.stdout)
    assert (done.returncode, record["pages"]) == (1, 2)
    assert "train.jsonl:2: is not UTF-8" in record["problems"][0]


def test_garbage_run_folders(tmp_path: Path) -> None:
    dice = random.Random(0)
    for number in range(100):
        folder = tmp_path / f"runs/20260101-000000-g{number}"
        folder.mkdir(parents=True)
        error = {"type": "x" * 5000, "message": "y" * 100_000}
        sentinel = json.dumps({"error": error, "started": "z" * 10_000}).encode()
        (folder / ".FAILURE").write_bytes(sentinel if number % 2 else dice.randbytes(2000))
        count, value = (4, "v" * 20_000) if number % 3 else (400, "7")
        values = [f"k{dice.randrange(10**9)}: {value}" for _ in range(count)]
        (folder / "config.yaml").write_text("\n".join(values))
        (folder / "metrics.csv").write_bytes(dice.randbytes(50_000))
    good = tmp_path / "runs/20260101-000000-good"
    good.mkdir()
    (good / ".SUCCESS").write_text('{"metrics": {"hmean@0.5": 0.5}}')
    done = ocrlab("runs", cwd=tmp_path)
    assert done.returncode == 0 and "runs/20260101-000000-good\tsuccess\t0.5" in done.stdout
    assert len(done.stdout) < 2_000_000


def test_a_packed_checkpoint_is_not_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.ckpt", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        file.writestr("archive/version", "3\n")
        file.writestr("archive/data/0", bytes(1 << 28))
    cv2.imwrite(str(tmp_path / "a.png"), np.full((64, 64, 3), 255, np.uint8))
    done = ocrlab("predict", "a.png", "--checkpoint", "bomb.ckpt", cwd=tmp_path)
    assert done.returncode == 1 and "packed into" in done.stderr


CELL = {"cell_type": "code", "metadata": {}, "execution_count": 1, "source": "1", "outputs": []}
ERROR = {"output_type": "error", "ename": "E", "evalue": "v", "traceback": 7}
NOTEBOOK = {"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": [CELL]}
MALFORMED = {
    "a traceback that is a number": json.dumps(NOTEBOOK | {"cells": [CELL | {"outputs": [ERROR]}]}),
    "lists in each other": "[" * 100_000 + "]" * 100_000,
    "cells in each other": '{"cells": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "a number": "7",
    "cells that are none": json.dumps(NOTEBOOK | {"cells": [7]}),
    "a source that is an object": json.dumps(NOTEBOOK | {"cells": [CELL | {"source": {}}]}),
    "an unknown output": json.dumps(NOTEBOOK | {"cells": [CELL | {"outputs": [{"output_type": "x"}]}]}),
    "of a version that is not there": json.dumps(NOTEBOOK | {"nbformat": 99}),
}


def test_what_is_not_a_notebook_is_refused_in_a_sentence(tmp_path: Path) -> None:
    for number, text in enumerate(MALFORMED.values()):
        (tmp_path / f"{number}.ipynb").write_text(text)
    commands = [f"{command} {n}.ipynb" for n in range(len(MALFORMED)) for command in ("report html", "diagnose")]
    for command, done in run_each(commands, tmp_path, tmp_path / "notes", seconds=SECONDS * 5, memory=8 << 30).items():
        assert "OCRLAB_TRACEBACK" not in done.stderr and "Warning" not in done.stderr, (command, done.stderr)
        if command.startswith("report"):
            sentence = f"ocrlab: {command.split()[-1]} is not a notebook. Given: "
            assert done.returncode == 1 and done.stderr.startswith(sentence), command
    assert not [*tmp_path.glob("*.html")]


def test_a_notebook_of_very_many_cells_is_cut_in_its_middle(tmp_path: Path) -> None:
    cells = [CELL | {"execution_count": number, "source": f"step({number})"} for number in range(5_000)]
    (tmp_path / "x.ipynb").write_text(json.dumps(NOTEBOOK | {"cells": cells}))
    ocrlab("report", "html", "x.ipynb", cwd=tmp_path)
    html = (tmp_path / "x.html").read_text()
    assert "4,000 of 5,000 cells are left out here" in html
    assert "[0]" in html and "[4999]" in html and "[2500]" not in html


def test_a_count_that_is_none_and_half_a_surrogate_pair_are_shown_as_such(tmp_path: Path) -> None:
    bare = {key: value for key, value in CELL.items() if key != "execution_count"}
    cells = [bare | {"source": "first"}, CELL | {"source": "second", "execution_count": {}}]
    metadata = {"papermill": {"duration": 1e999}, "ocrlab": {"redacted": "x"}}
    output = {"output_type": "display_data", "metadata": {}, "data": {"text/html": "<b>\ud800 whole \U0001f600</b>"}}
    (tmp_path / "count.ipynb").write_text(json.dumps(NOTEBOOK | {"cells": cells, "metadata": metadata}))
    (tmp_path / "half.ipynb").write_text(json.dumps(NOTEBOOK | {"cells": [CELL | {"outputs": [output]}]}))
    commands = ["report html count.ipynb", "report html half.ipynb"]
    done = run_each(commands, tmp_path, tmp_path / "notes", seconds=200, memory=8 << 30)
    assert [each.returncode for each in done.values()] == [0, 0]
    assert "second" in (tmp_path / "count.html").read_text()
    assert "\ufffd whole \U0001f600" in (tmp_path / "half.html").read_text()


def test_numbers_beyond_float32_are_reported_without_a_warning(tmp_path: Path) -> None:
    page(tmp_path / "data", "a", "1e308,10,90,10,90,30,10,30,Total\n10,10,90,10,90,30,10,30,Total\n")
    page(tmp_path / "data", "b", "10,10,90,10,90,30,10,30,Total\n")
    done = ocrlab("samples", "check", "data", "--json", cwd=tmp_path)
    assert {finding["page"] for finding in json.loads(done.stdout)["findings"]} >= {"a"}
