"""Contact sheets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ocrlab.data.audit import Finding, contact_sheet


def test_each_finding_has_a_crop_and_sheets_are_paged(draw: Callable[..., Any], tmp_path: Path) -> None:
    page = draw(1)
    page.write(tmp_path, "p")
    points = [[float(x), float(y)] for x, y in page.quads[0]]
    far = [[9000.0, 9000.0], [9100.0, 9000.0], [9100.0, 9020.0]]
    shapes = [points, None, far, [[1.0, 1.0]] * 4]
    findings = [Finding("misplaced", "p", "train", 1, shape, "warn", "why " * 30) for shape in shapes * 8]
    sheets = list(contact_sheet.sheets(tmp_path, findings))
    assert len(sheets) == 2
    assert sheets[0].shape == (
        (contact_sheet.CELL[1] + contact_sheet.LABEL + contact_sheet.GAP) * 7,
        (contact_sheet.CELL[0] + contact_sheet.GAP) * 4,
        3,
    )
    red = (sheets[0] == contact_sheet.COLOURS["warn"]).all(axis=2)
    assert red.any()


def test_a_page_without_image_still_has_its_words(tmp_path: Path) -> None:
    (tmp_path / "train" / "images").mkdir(parents=True)
    (tmp_path / "train" / "gts").mkdir()
    (tmp_path / "train" / "images" / "p.jpg").write_bytes(b"no image")
    (tmp_path / "train" / "gts" / "gt_p.txt").write_text("")
    [sheet] = contact_sheet.sheets(tmp_path, [Finding("unreadable_image", "p", "train", None, None, "error", "broken")])
    assert (sheet < 100).any()
