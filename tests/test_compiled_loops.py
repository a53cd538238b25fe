"""Compiled loops: imported late, with a cache where one can be written, and not at all where there is no numba."""

from __future__ import annotations

import subprocess
import sys

import numba
import numpy as np
import pytest

from ocrlab import compiled_loops
from ocrlab.data import target_maps
from ocrlab.evaluation.postprocess import decode

MODULES = (
    "ocrlab.data.target_maps_numba",
    "ocrlab.evaluation.postprocess.numba_kernels",
    "ocrlab.losses.db_loss_numba",
)


def test_a_cache_that_cannot_be_written_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = numba.njit, []

    def njit(signature: str, *, cache: bool = False, **options: object) -> object:
        asked.append(cache)
        if cache:
            raise RuntimeError("no locator available")
        return real(signature, **options)

    monkeypatch.setattr(numba, "njit", njit)
    assert compiled_loops.entry("i8(i8)")(lambda number: number * 2)(21) == 42
    assert asked == [True, False]


@pytest.mark.parametrize("module", MODULES)
def test_without_numba_there_are_no_loops(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    compiled_loops.load.cache_clear()
    try:
        assert compiled_loops.load(module) is None
        box = np.array([[2, 2], [40, 2], [40, 20], [2, 20]], np.float32)
        maps = target_maps.make([box], np.zeros(1, bool), (32, 64), shrink_ratio=0.4, threshold_range=(0.3, 0.7))
        assert len(decode(maps.shrink_map)) == 1
    finally:
        compiled_loops.load.cache_clear()


def test_numba_is_imported_only_when_it_is_needed() -> None:
    code = (
        "import sys, numpy as np; from ocrlab.evaluation.postprocess import decode; import ocrlab.data.target_maps; "
        "import ocrlab.losses.db_loss; early = 'numba' in sys.modules; "
        "decode(np.ones((8, 8), np.float32), compiled=False); plain = 'numba' in sys.modules; "
        "decode(np.ones((8, 8), np.float32)); print(early, plain, 'numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["False", "False", "True"]
