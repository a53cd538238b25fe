"""Pictures of pages and maps: small, with the polygons as vectors over them and words beside them."""

import base64
import io
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from ocrlab.reports.html import page_images

SQUARE = np.array([[0, 0], [10, 0], [10, 10], [0, 10]], np.float32)


def opened(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.partition("base64,")[2])))


@pytest.fixture
def page() -> np.ndarray:
    """Return a page of 1300 x 900 pixels that is as busy as a photographed receipt."""
    rng = np.random.default_rng(0)
    grey = np.full((1300, 900), 230, np.uint8)
    grey[::12] = 90
    return np.repeat((grey + rng.integers(0, 12, grey.shape).astype(np.uint8))[..., None], 3, axis=2)


def test_a_page_is_a_small_grey_webp(page: np.ndarray) -> None:
    uri = page_images.encoded(page)
    image = opened(uri)
    assert uri.startswith("data:image/webp")
    assert max(image.size) == 640
    assert np.ptp(np.asarray(image.convert("RGB")), axis=2).max() <= 3, "grey, to the rounding of YUV"
    assert len(uri) < 100_000


def test_a_map_is_a_png_of_few_colours() -> None:
    values = np.linspace(0, 1, 640 * 640, dtype=np.float32).reshape(640, 640)
    uri = page_images.encoded(values)
    assert uri.startswith("data:image/png")
    assert opened(uri).mode == "P"
    assert len(uri) < 20_000


def test_polygons_lie_over_the_page_in_its_own_pixels(page: np.ndarray) -> None:
    layers = page_images.truth_layers([SQUARE, SQUARE + 20], np.array([False, True]))
    html = page_images.picture(page, 'page "x" <1>', layers, "caption")
    svg = ET.fromstring(re.search(r"<svg.*</svg>", html)[0])
    assert svg.get("viewBox") == "0 0 900 1300"
    assert svg.get("aria-label") == 'page "x" <1>'
    text, ignored = svg.findall("path")
    assert text.get("d") == "M0 0L10 0L10 10L0 10Z"
    assert ignored.get("stroke-dasharray")


def test_right_missed_wrong_and_ignored_look_different() -> None:
    truth = [SQUARE, SQUARE + 100, SQUARE + 200]
    detections = [SQUARE + 1, SQUARE + 300, SQUARE + 200]
    layers = page_images.match_layers(
        truth, np.array([False, False, True]), detections, [(0, 0)], np.array([True, True, False])
    )
    names = {layer.name: [polygon[0, 0] for polygon in layer.polygons] for layer in layers}
    assert names == {"ignored": [200], "missed": [100], "wrong": [300], "found": [1]}
    assert len({(layer.colour, layer.dash) for layer in layers}) == 4
