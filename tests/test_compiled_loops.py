"""Compiled loops: imported late, with a cache where one can be written."""

import subprocess
import sys

import numba

from ocrlab import compiled_loops


def test_a_cache_that_cannot_be_written_does_not_matter(monkeypatch) -> None:
    real, asked = numba.njit, []

    def njit(signature: str, *, cache: bool = False, **options: object) -> object:
        asked.append(cache)
        if cache:
            raise RuntimeError("no locator available")
        return real(signature, **options)

    monkeypatch.setattr(numba, "njit", njit)
    assert compiled_loops.entry("i8(i8)")(lambda number: number * 2)(21) == 42
    assert asked[:2] == [True, False]  # numba itself compiles more where it is imported here first


def test_numba_is_imported_only_when_it_is_needed() -> None:
    code = (
        "import sys, numpy as np; from ocrlab.evaluation.postprocess import decode; import ocrlab.data.target_maps; "
        "import ocrlab.losses.db_loss; early = 'numba' in sys.modules; "
        "decode(np.ones((8, 8), np.float32)); print(early, 'numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["False", "True"]
