"""What a piece of ink looks like."""

from __future__ import annotations

import tracemalloc

import cv2
import numpy as np
import pytest

from ocrlab.data.audit import missing_boxes


def pieces(texts: str, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return the contrast of a row of characters and its pieces, from left to right."""
    contrast = np.zeros((round(60 * scale), round(40 * scale * (len(texts) + 1))), np.uint8)
    for at, text in enumerate(texts):
        place = (round((20 + 40 * at) * scale), round(45 * scale))
        cv2.putText(contrast, text, place, cv2.FONT_HERSHEY_SIMPLEX, scale, 255, max(1, round(2 * scale)), cv2.LINE_AA)
    stats = cv2.connectedComponentsWithStats((contrast > 90).astype(np.uint8), connectivity=8)[2][1:]
    return contrast, stats[stats[:, 0].argsort()]


def looks(texts: str, scale: float = 1.0) -> missing_boxes.Looks:
    features = missing_boxes.component_looks(*pieces(texts, scale))
    assert len(features) == len(texts)
    return features


@pytest.mark.parametrize("scale", [0.6, 1.0, 2.0])
def test_a_sign_is_recognised_at_any_size(scale: float) -> None:
    alike = missing_boxes.similarity(looks("ARSH238", scale), looks("ARSH238"))
    assert alike.argmax(axis=1).tolist() == list(range(7))
    assert alike.diagonal().min() > 0.6
    assert missing_boxes.similarity(looks("ARSH238"), looks("ARSH238")).max() == pytest.approx(1, abs=1e-5)


def test_a_stroke_is_not_a_wide_sign() -> None:
    assert missing_boxes.similarity(looks("I"), looks("H"))[0, 0] < 0.5


def test_what_the_boxes_hold_is_repeated() -> None:
    repeated = missing_boxes.best_similarity(looks("RX"), looks("RSTAH"))
    assert repeated[0] > 0.99
    assert repeated[1] < 0.7
    assert missing_boxes.best_similarity(looks("R"), looks("R")[:0]).tolist() == [-1]
    assert missing_boxes.best_similarity(looks("R")[:0], looks("R")).shape == (0,)


def test_a_page_of_dirt_costs_little() -> None:
    rng = np.random.default_rng(0)
    many = rng.normal(size=(60_000, missing_boxes.GRID**2 + 1)).astype(np.float32)
    own = many[::50]
    assert missing_boxes.best_similarity(own, many[:3]).shape == (1200,)
    tracemalloc.start()
    missing_boxes.best_similarity(own, many)
    assert tracemalloc.get_traced_memory()[1] < 2**26
    tracemalloc.stop()


def test_a_row_of_a_single_sign_is_monotonous() -> None:
    assert missing_boxes.monotony(looks("XXXXXXXX")) > 0.99
    assert missing_boxes.monotony(looks("TOSHARES")) < 0.7
    assert missing_boxes.monotony(looks("XX")) == 0
