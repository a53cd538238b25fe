"""Synthetic receipts: same bytes every time, exact polygons, like real receipts, not solved by a threshold."""

import importlib
import os
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import cv2
import numpy as np
import pytest
import shapely
from numpy.typing import NDArray

from ocrlab.data.formats.icdar import text_of
from ocrlab.data.synthetic import generate, photo_effects, receipt_layout, typesetting
from ocrlab.data.synthetic.stable_random import Dice
from ocrlab.errors import DataError

# NumPy's list of vector units moved with NumPy 2
vectors = importlib.import_module(f"numpy.{'core' if np.__version__ < '2' else '_core'}._multiarray_umath")
SAMPLES = Path(__file__).parents[3] / "data_samples"
Boxes = list[NDArray[np.float64]]
FINGERPRINT = """
import hashlib
from ocrlab.data.synthetic.stable_random import Dice
from ocrlab.data.synthetic.receipt_layout import layout
from ocrlab.data.synthetic.generate import page
print(hashlib.sha256(page(11).jpeg).hexdigest())
print(hashlib.sha256(repr([layout(Dice(seed), 520, 900) for seed in range(40)]).encode()).hexdigest())
"""


def read(folder: Path) -> dict[str, tuple[Boxes, list[str]]]:
    """Return polygons and texts of every annotation file of a split, by page name."""
    pages = {}
    for path in sorted((folder / "gts").glob("gt_*.txt")):
        rows = [row.split(",", 8) for row in path.read_text(encoding="utf-8").splitlines() if row.strip()]
        quads = [np.array(row[:8], float).reshape(4, 2) for row in rows]
        pages[path.stem.removeprefix("gt_")] = quads, [row[8] for row in rows]
    return pages


def test_bytes_do_not_depend_on_hash_seed_threads_or_vector_unit() -> None:
    optional = [name for name in vectors.__cpu_dispatch__ if vectors.__cpu_features__[name]]
    plain = {
        "PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "3", "NPY_DISABLE_CPU_FEATURES": " ".join(optional),
        "OPENCV_CPU_DISABLE": "AVX2,FP16,AVX512_SKX", "JSIMD_FORCENONE": "1", "PYTHONWARNINGS": "ignore",
    }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-c", FINGERPRINT], env={**os.environ, **plain}, capture_output=True, text=True, check=True
    )
    with redirect_stdout(StringIO()) as here:
        exec(FINGERPRINT, {})
    assert ran.stdout == here.getvalue()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_polygons_hold_all_ink_of_their_text_and_little_else(seed: int) -> None:
    sheet = receipt_layout.layout(Dice(seed, 1), 520, 900)
    matrix = photo_effects.place(Dice(seed, 2), (sheet.width, sheet.height), (600, 960))
    u, v = photo_effects.paper_coordinates(matrix, 600, 960)
    lines = generate.annotate(sheet, matrix)
    pieces = [replace(piece, inverse=False) for piece in sheet.pieces]
    for piece, line in list(zip(pieces, lines, strict=True))[::5]:
        plane = np.zeros((sheet.height * typesetting.SCALE, sheet.width * typesetting.SCALE), np.uint8)
        typesetting.draw(piece, plane)
        ink = photo_effects.sample(plane, u, v)
        rows, columns = np.nonzero(ink > 0.3)
        centres = shapely.points(columns + 0.5, rows + 0.5)
        quad = shapely.polygons(line)
        assert shapely.distance(centres, quad).max() < 0.6, piece.text
        margin = typesetting.MARGIN * piece.size
        for start in range(4):  # each side has ink near it
            side = shapely.linestrings(line[[start, (start + 1) % 4]])
            assert shapely.distance(centres, side).min() < margin + 1.6, piece.text


@pytest.mark.parametrize(("split", "place"), [("train", 0), ("train", 47), ("val", 15)])
def test_samples_are_what_the_program_makes(split: str, place: int) -> None:
    page = generate.page(generate.SPLITS[split] + place)
    name = f"receipt_{place:03}"
    assert (SAMPLES / split / "gts" / f"gt_{name}.txt").read_bytes() == text_of(page.lines, page.texts).encode()
    pixels = cv2.imread(str(SAMPLES / split / "images" / f"{name}.jpg"), cv2.IMREAD_COLOR)[:, :, ::-1]
    assert np.abs(pixels.astype(int) - page.image).mean() <= 1  # 0 with the locked set


def test_make_writes_a_folder_and_its_checksums(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    data_set = generate.make(tmp_path / "a", train=1, val=1, progress=lambda done, total: calls.append((done, total)))
    files = {
        path.relative_to(tmp_path / "a").as_posix(): path for path in (tmp_path / "a").rglob("*") if path.is_file()
    }
    assert set(files) == {
        "train/images/receipt_000.jpg", "train/gts/gt_receipt_000.txt",
        "val/images/receipt_000.jpg", "val/gts/gt_receipt_000.txt",
        "README.md", "SHA256SUMS",
    }  # fmt: skip
    assert calls == [(1, 2), (2, 2)]
    assert data_set.bytes == sum(path.stat().st_size for path in files.values())
    assert data_set.lines == sum(len(read(tmp_path / "a" / split)["receipt_000"][0]) for split in ("train", "val"))
    assert files["train/images/receipt_000.jpg"].read_bytes() == generate.page(0).jpeg
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]  # no staging folder is left


def test_make_refuses_a_folder_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("precious")
    for place in ("mine", "mine/notes.txt"):
        with pytest.raises(DataError, match="already exists"):
            generate.make(tmp_path / place, train=1, val=0)
    assert (tmp_path / "mine" / "notes.txt").read_text() == "precious"


def test_make_leaves_nothing_behind_when_it_is_interrupted(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate.make(tmp_path / "samples", train=2, val=0, progress=stop)
    assert not any(tmp_path.iterdir())


def test_an_empty_folder_stays_the_same_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inode = tmp_path.stat().st_ino
    generate.make(".", train=1, val=1)
    assert tmp_path.stat().st_ino == inode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", generate.SUMS, "train", "val"]
