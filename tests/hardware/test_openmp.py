"""How long waiting threads of OpenMP stay awake."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ocrlab.hardware import openmp


def test_waiting_threads_sleep_soon_unless_somebody_has_chosen() -> None:
    env: dict[str, str] = {}
    openmp.sleep_soon(env)
    assert env == {"GOMP_SPINCOUNT": "1000"}
    for chosen in ({"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}):
        env = dict(chosen)
        openmp.sleep_soon(env)
        assert env == chosen


@pytest.mark.parametrize("variables", [{}, {"OMP_WAIT_POLICY": "active"}])
def test_libgomp_reads_it(variables: dict[str, str]) -> None:
    env = {name: text for name, text in os.environ.items() if name not in openmp.SETTINGS} | variables
    openmp.sleep_soon(env)
    done = subprocess.run(
        [sys.executable, "-c", "import torch; torch.ones(9)"],
        env={**env, "OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ("GOMP_SPINCOUNT = '1000'" in done.stderr) == (not variables)
