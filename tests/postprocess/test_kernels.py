"""The compiled loops: the same as Python, without a cache, and without numba."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import cv2
import numpy as np
import pytest

from ocrlab.postprocess import kernels


def test_compiled_and_not_the_means_are_those_of_opencv() -> None:
    rng = np.random.default_rng(0)
    values = rng.random((60, 80), dtype=np.float32)
    turned = [cv2.boxPoints(((40, 30), rng.uniform(0, 40, 2).tolist(), rng.uniform(0, 90))) for _ in range(100)]
    boxes = np.array(turned).astype(np.int32)
    wanted = []
    for box in boxes:
        mask = np.zeros(values.shape, np.uint8)
        cv2.fillPoly(mask, [box], 1)
        wanted.append(cv2.mean(values, mask)[0])
    for means in (kernels.box_means, getattr(kernels.box_means, "py_func")):  # noqa: B009
        found = np.empty(len(boxes))
        means(values, boxes, found)
        np.testing.assert_allclose(found, wanted, atol=1e-9)


@pytest.mark.parametrize("shift", [(-60, 0), (60, 0), (0, -60), (0, 60)])
def test_a_box_that_leaves_the_map_is_not_read(shift: tuple[int, int]) -> None:
    boxes = np.array([[[20, 20], [40, 20], [40, 40], [20, 40]]], np.int32) + np.array(shift, np.int32)
    found = np.zeros(1)
    kernels.box_means(np.ones((60, 60), np.float32), boxes, found)
    assert np.isnan(found).all()


def test_a_cache_that_cannot_be_written_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def njit(signature: str, cache: bool = False, nogil: bool = False) -> object:
        asked.append(cache)
        if cache:
            raise RuntimeError("no locator available")
        return lambda function: function

    monkeypatch.setattr(kernels.numba, "njit", njit)
    assert kernels.compiled("void()")(len) is len
    assert asked == [True, False]


def test_without_numba_the_loops_are_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    spec = importlib.util.spec_from_file_location("kernels_without_numba", kernels.__file__)
    assert spec is not None and spec.loader is not None
    plain = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plain)
    boxes = np.array([[[9, 5], [1, 1], [1, 6], [9, 0]]], np.float32)
    plain.order(boxes)
    assert boxes.tolist() == [[[1, 1], [9, 0], [9, 5], [1, 6]]]


def test_numba_is_imported_only_when_there_is_a_map() -> None:
    code = (
        "import sys, numpy as np; from ocrlab.postprocess import decode; early = 'numba' in sys.modules; "
        "decode(np.ones((8, 8), np.float32)); print(early, 'numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["False", "True"]
