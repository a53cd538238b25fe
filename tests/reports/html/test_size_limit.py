"""Reports that stay small: pictures are made smaller only where that is asked for and helps."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from ocrlab.reports.html import size_limit
from ocrlab.reports.html.size_limit import Limits


def address(width: int, height: int, mode: str = "RGB") -> str:
    noise = np.random.default_rng(0).integers(0, 255, (height, width, len(mode)), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(noise).save(data, "png")
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_a_large_picture_is_reduced(mode: str) -> None:
    html = f'<img src="{address(600, 300, mode)}" alt="x">'
    reduced = size_limit.pictures(html, Limits(pixels=200, quality=60))
    assert len(reduced) < len(html) / 5
    code = reduced.partition("base64,")[2].partition('"')[0]
    with Image.open(io.BytesIO(base64.b64decode(code))) as image:
        assert image.size == (200, 100)
    assert reduced.endswith('" alt="x">')


@pytest.mark.parametrize("data", ["data:image/png;base64,AAAA", "data:image/png;base64," + "A" * 80_000])
def test_what_is_small_or_no_picture_stays(data: str) -> None:
    assert size_limit.pictures(data, Limits(pixels=200, quality=60)) == data


def test_nothing_is_touched_without_need() -> None:
    html = address(300, 300)
    assert size_limit.pictures(html, size_limit.STEPS[0]) is html


def test_each_step_is_smaller_than_its_predecessor() -> None:
    for before, after in zip(size_limit.STEPS, size_limit.STEPS[1:], strict=False):
        assert (after.text, after.html, after.pixels) <= (before.text, before.html, before.pixels)
        assert after.text < before.text
