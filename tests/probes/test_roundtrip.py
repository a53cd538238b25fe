"""A real DataLoader's round trip, by fork in a child of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ocrlab.doctor import child
from ocrlab.probes import roundtrip

pytest.importorskip("torch")


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_batches_come_back_whole(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = child.run(sys.executable, Path(roundtrip.__file__), "batches", {"method": method}, deadline=120)
    assert ran.done, ran.errors
    told = ran.answers[-1]
    assert (told["same"], told["batches"]) == (True, roundtrip.ITEMS // 2)
    assert {"at": f"starting {roundtrip.WORKERS} workers by {method}"} in ran.answers
