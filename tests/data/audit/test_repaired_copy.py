"""The cleaned copy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ocrlab.data.audit import check, repaired_copy
from ocrlab.data.formats.icdar import read_icdar
from ocrlab.errors import DataError


def test_what_is_certain_is_fixed_and_reported(draw: Callable[..., Any], tmp_path: Path) -> None:
    data, target = tmp_path / "data", tmp_path / "clean"
    page = draw(1)
    count = len(page.quads)
    page.quads[0] = page.quads[0][::-1].copy()
    page.quads.append(page.quads[2].copy())
    page.texts.append(page.texts[2])
    page.quads.append(np.float32([[1, 1], [1, 1], [1, 1], [1, 1]]))
    page.texts.append("nothing")
    page.write(data, "p")
    draw(2).write(data, "bad")
    (data / "train" / "images" / "bad.png").write_bytes(b"no image")
    before = {file: file.read_bytes() for file in data.rglob("*") if file.is_file()}
    done = repaired_copy.copy(data, target, check(data))
    assert {file: file.read_bytes() for file in data.rglob("*") if file.is_file()} == before
    assert (done.pages, done.boxes) == (1, count)
    assert done.counts == {"boxes reordered": 1, "boxes dropped": 2, "pages left out": 1}
    boxes = read_icdar(target / "train" / "gts" / "gt_p.txt")
    assert np.array_equal(boxes.polygons[0], page.quads[0][::-1])
    assert [finding for finding in check(target) if finding.severity == "error"] == []
    assert len((target / "CHANGES.txt").read_text().splitlines()) == 4


def test_nothing_is_overwritten(draw: Callable[..., Any], tmp_path: Path) -> None:
    draw(3).write(tmp_path / "data", "p")
    with pytest.raises(DataError, match="already exists"):
        repaired_copy.copy(tmp_path / "data", tmp_path / "data", [])


def test_what_was_ended_midway_leaves_nothing(
    draw: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw(4).write(tmp_path / "data", "p")
    draw(5).write(tmp_path / "data", "q")
    (tmp_path / "clean").mkdir()
    written = []

    def ended(*arguments: Any, **more: Any) -> None:
        written.append(arguments[0])
        if len(written) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(repaired_copy, "write_icdar", ended)
    with pytest.raises(KeyboardInterrupt):
        repaired_copy.copy(tmp_path / "data", tmp_path / "clean", [])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean", "data"] and not any(
        (tmp_path / "clean").iterdir()
    )
    monkeypatch.undo()
    assert repaired_copy.copy(tmp_path / "data", tmp_path / "clean", []).pages == 2
