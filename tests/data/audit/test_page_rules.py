"""Pages that are there twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2

from ocrlab.data.audit import check, page_rules
from ocrlab.data.audit.page_image import fingerprint


def test_a_page_saved_again_at_half_size_is_recognised(draw: Callable[..., Any], tmp_path: Path) -> None:
    page = draw(1)
    page.write(tmp_path, "a")
    page.write(tmp_path, "same")
    small = draw(1)
    small.image = cv2.resize(small.image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    small.quads = [quad / 2 for quad in small.quads]
    small.write(tmp_path, "b", split="val", suffix=".jpg")
    draw(2).write(tmp_path, "c")
    findings = {
        (f.kind, f.page, f.other, f.severity) for f in check(tmp_path) if f.box is None and f.severity != "note"
    }
    assert ("duplicate_page", "same", "a", "error") in findings
    assert ("leak", "b", "train/a", "error") in findings
    assert not any("c" in (page, other) for _, page, other, _ in findings)


def test_texts_alone_identify_pages_without_images() -> None:
    texts = frozenset(f"line {number}" for number in range(10))
    first, two = (page_rules.PageFingerprint(name, "train", None, None, None, None, texts) for name in "ab")
    other = page_rules.PageFingerprint(
        "c", "train", None, None, None, None, frozenset(f"other {number}" for number in range(10))
    )
    [finding] = page_rules.duplicate_pages([first, other, two])
    assert (finding.kind, finding.page, finding.other) == ("near_duplicate_page", "b", "a")


def test_blank_pages_are_not_copies_of_each_other(draw: Callable[..., Any]) -> None:
    page = draw(3).image
    page[:] = 255
    bits, thumb = fingerprint(page)
    prints = [page_rules.PageFingerprint(name, "train", name, name, bits, thumb, frozenset()) for name in "ab"]
    assert list(page_rules.duplicate_pages(prints)) == []
