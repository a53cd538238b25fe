"""How a box lies on its ink."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ocrlab.data.audit import box_alignment, check, missing_boxes, page_image, page_rules


def test_a_good_box_holds_all_its_ink(draw: Callable[..., Any]) -> None:
    page = draw(1)
    sheet = page_image.sheet(page.image, page.quads)
    places = [place for quad in sheet.polygons if quad is not None and (place := box_alignment.look(sheet, quad))]
    assert min(place.ink_share for place in places) > 0.97
    assert all(box_alignment.lies_well(place) for place in places)
    assert missing_boxes.lines(sheet) == []


@pytest.mark.parametrize("invert", [False, True])
def test_light_print_on_dark_ground_is_ink_too(draw: Callable[..., Any], invert: bool) -> None:
    page = draw(2)
    image = 255 - page.image if invert else page.image
    assert page_rules.fits(image, page.quads) == 1.0


def test_a_shift_is_measured(draw: Callable[..., Any]) -> None:
    page = draw(3)
    moved = [*page.quads[:4], page.quads[4] + np.float32((0, 10)), *page.quads[5:]]
    sheet = page_image.sheet(page.image, moved)
    polygon = sheet.polygons[4]
    assert polygon is not None
    place = box_alignment.look(sheet, polygon)
    assert place is not None
    assert place.dy < -0.1
    assert place.ink_share < 0.9


def test_x_and_y_exchanged_are_distinguished_from_a_reversed_box(draw: Callable[..., Any], tmp_path: Path) -> None:
    page = draw(4)
    page.quads[6] = page.quads[6][:, ::-1].copy()
    page.quads[9] = page.quads[9][::-1].copy()
    page.write(tmp_path, "p")
    kinds = {finding.box: finding.kind for finding in check(tmp_path) if finding.box}
    assert kinds == {7: "swapped", 10: "reversed"}
