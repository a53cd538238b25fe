"""The one warp: image and polygons move together, and the inverse brings detections back."""

import cv2
import numpy as np
import pytest

from ocrlab.config.schema import Augment, Evaluate
from ocrlab.data import transforms


def dot(size: tuple[int, int], at: tuple[int, int]) -> np.ndarray:
    image = np.full((size[1], size[0], 3), 255, np.uint8)
    cv2.circle(image, at, 4, (0, 0, 0), -1)
    return image


def centre_of_dark(image: np.ndarray) -> np.ndarray:
    y, x = np.nonzero(image[..., 0] < 60)
    return np.array([x.mean(), y.mean()])


@pytest.mark.parametrize("seed", range(20))
def test_image_and_points_move_together(seed):
    rng = np.random.default_rng(seed)
    at = np.array([300.0, 200.0])
    augment = Augment(scale=(0.5, 2.0), rotate=20, flip=0.5, around_text=1.0)
    warp = transforms.random_warp(rng, (600, 400), [at[None] + [[-5, -5], [5, -5], [5, 5], [-5, 5]]], 256, augment)
    crop = transforms.warp_image(dot((600, 400), (300, 200)), warp, (256, 256))
    moved = transforms.warp_points(at[None], warp)[0]
    assert ((moved > 0) & (moved < 256)).all(), "the polygon that the crop is around lies in it"
    if ((moved > 12) & (moved < 244)).all():
        assert np.abs(centre_of_dark(crop) - moved).max() < 1.0


def test_a_crop_shows_the_page_and_not_the_padding_where_it_can():
    for seed in range(50):
        warp = transforms.random_warp(np.random.default_rng(seed), (2000, 1500), [], 256, Augment(rotate=0))
        corners = transforms.warp_points(np.array([[0, 0], [2000, 1500]]), warp)
        assert corners[0].max() <= 1e-3
        assert corners[1].min() >= 256 - 1e-3


@pytest.mark.parametrize("size", [(1, 1), (32, 32), (97, 61), (900, 1280), (20000, 300), (300, 20000)])
def test_letterbox_gives_multiples_of_32_and_never_enlarges(size):
    warp, canvas = transforms.letterbox(size, Evaluate(long_side=1280))
    assert all(n % 32 == 0 and n > 0 for n in canvas)
    assert max(canvas) <= 1280
    edges = transforms.warp_points(np.array([[-0.5, -0.5], [size[0] - 0.5, size[1] - 0.5]]), warp)
    assert np.abs(edges[0] + 0.5).max() < 1e-4, "page edges meet canvas edges"
    assert (edges[1] <= np.array(canvas)).all()
    image = transforms.warp_image(np.zeros((size[1], size[0], 3), np.uint8), warp, canvas)
    assert image.shape == (canvas[1], canvas[0], 3)


def test_a_degraded_crop_keeps_its_text_in_place():
    image = np.full((96, 96, 3), 230, np.uint8)
    image[40:56, 20:76] = 20
    weak = Augment(brightness=0, noise=0, blur=0, degrade=1)
    crops = [transforms.photometric(np.random.default_rng(seed), image, weak) for seed in range(40)]
    for crop in crops:
        assert crop.shape == image.shape
        assert crop.dtype == np.uint8
        grey = crop.astype(float).mean(axis=2)
        dark = grey < (grey.min() + grey.max()) / 2
        rows, columns = np.nonzero(dark & (cv2.blur(dark.astype(np.uint8) * 255, (5, 5)) > 128))
        assert abs(rows.mean() - 47.5) < 1.5
        assert abs(columns.mean() - 47.5) < 1.5
    assert len({crop.tobytes() for crop in crops}) > 30  # two may draw the same JPEG quality
    assert min(crop.mean() for crop in crops) < 0.6 * image.mean()  # some are dark
