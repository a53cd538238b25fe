"""Pages as they were written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ocrlab.data.audit import raw_annotations
from ocrlab.errors import DataError


def test_lines_keep_their_numbers_and_bad_ones_their_reasons(tmp_path: Path) -> None:
    file = tmp_path / "gt_p.txt"
    file.write_bytes(b"\xef\xbb\xbf1,1,9,1,9,9,1,9,a,b\r\n\r\nx,1\n1,1,9,1,9,9,1,nan,c\n1,1,9,1,9,9,1,9,###\n")
    raw = raw_annotations.Raw("p", "train", None, file)
    raw_annotations.read_lines(file, raw)
    assert [(box.line, box.text, box.ignored) for box in raw.boxes] == [
        (1, "a,b", False),
        (4, "c", False),
        (5, "###", True),
    ]
    assert [line for line, _ in raw.faults] == [3]
    assert len(raw.notes) == 2


def test_loose_files_find_images_around_them(draw: Callable[..., Any], tmp_path: Path) -> None:
    draw(1).write(tmp_path, "p")
    loose = tmp_path / "defects" / "raw"
    loose.mkdir(parents=True)
    (loose / "p.csv").write_text("1,1,9,1,9,9,1,9,a\n")
    (loose / "q.csv").write_text("1,1,9,1,9,9,1,9,a\n")
    pages = {raw.name: raw for raw in (read() for read in raw_annotations.pages(tmp_path / "defects"))}
    assert pages["p"].image == tmp_path / "train" / "images" / "p.png"
    assert pages["q"].image is None


def test_an_annotation_file_that_cannot_be_read_is_an_error_and_no_loose_images(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "p.png").write_bytes(b"")
        (tmp_path / split / f"{split}.json").write_text('{"images": [{"id": 1, "file_name": "p.png"}]')
    with pytest.raises(DataError, match="train.json.*not JSON"):
        raw_annotations.pages(tmp_path)
