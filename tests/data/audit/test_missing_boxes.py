"""Lines that nobody boxed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest

from ocrlab.data.audit import missing_boxes, page_image


def missing_lines(page: Any) -> list[tuple[missing_boxes.Line, np.ndarray]]:
    """Return the lines that are reported on a page, with their left, top, right, bottom in its pixels."""
    sheet = page_image.sheet(page.image, page.quads)
    lines = [
        line
        for line in missing_boxes.lines(sheet)
        if missing_boxes.likeness(line) > missing_boxes.TEXT_LIKE and missing_boxes.is_print(line)
    ]
    return [(line, np.array([*line.box[:2], *np.add(line.box[:2], line.box[2:])]) / sheet.scale) for line in lines]


@pytest.mark.parametrize("at", [4, 7, 12])
def test_a_line_left_out_is_detected(draw: Callable[..., Any], at: int) -> None:
    page = draw(3)
    gone = page.quads.pop(at)
    [(line, place)] = missing_lines(page)
    assert line["known"] > 0.85
    assert np.abs(place - [*gone[0], *gone[2]]).max() < 8


def test_a_heading_in_larger_print_is_detected(draw: Callable[..., Any]) -> None:
    page = draw(4)
    page.image = np.vstack([page.image, np.full((90, 520, 3), 235, np.uint8)])
    cv2.putText(page.image, "TOTAL SALES", (60, 680), cv2.FONT_HERSHEY_SIMPLEX, 0.9, (30, 30, 30), 3, cv2.LINE_AA)
    (wide, high), _ = cv2.getTextSize("TOTAL SALES", cv2.FONT_HERSHEY_SIMPLEX, 0.9, 3)
    [(_, place)] = missing_lines(page)
    assert np.abs(place - (60, 680 - high, 60 + wide, 680)).max() < 8


def test_print_that_stands_on_a_ruling_is_a_line(draw: Callable[..., Any]) -> None:
    page = draw(5)
    gone = page.quads.pop(6)
    bottom = round(float(gone[2, 1])) - 4  # touches the letters
    cv2.line(page.image, (10, bottom), (500, bottom), (30, 30, 30), 2)
    [(_, place)] = missing_lines(page)
    assert np.abs(place - [*gone[0], *gone[2]]).max() < 8


def test_scrawls_repeat_no_sign_of_the_boxes(draw: Callable[..., Any]) -> None:
    page = draw(6)
    page.image = np.vstack([page.image, np.full((80, 520, 3), 235, np.uint8)])
    rng = np.random.default_rng(0)
    for letter in range(7):
        turn = np.cumsum(rng.normal(0, 4, (7, 2)), axis=0)
        turn += np.array([60 + 22 * letter, 660]) - turn.mean(axis=0)
        cv2.polylines(page.image, [turn.astype(np.int32)], False, (30, 30, 30), 2, cv2.LINE_AA)
    assert missing_boxes.lines(page_image.sheet(page.image, page.quads))
    assert missing_lines(page) == []
