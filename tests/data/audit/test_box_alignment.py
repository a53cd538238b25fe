"""How a box lies on its ink."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ocrlab.data.audit import check, page_rules


@pytest.mark.parametrize("invert", [False, True])
def test_light_print_on_dark_ground_is_ink_too(draw: Callable[..., Any], invert: bool) -> None:
    page = draw(2)
    image = 255 - page.image if invert else page.image
    assert page_rules.fits(image, page.quads) == 1.0


def test_x_and_y_exchanged_are_distinguished_from_a_reversed_box(draw: Callable[..., Any], tmp_path: Path) -> None:
    page = draw(4)
    page.quads[6] = page.quads[6][:, ::-1].copy()
    page.quads[9] = page.quads[9][::-1].copy()
    page.write(tmp_path, "p")
    kinds = {finding.box: finding.kind for finding in check(tmp_path) if finding.box}
    assert kinds == {7: "swapped", 10: "reversed"}
