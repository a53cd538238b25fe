"""A real DataLoader's round trip, by fork in a child of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ocrlab.hardware import dataloader_probe
from ocrlab.hardware.doctor import probe_runner

pytest.importorskip("torch")


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_batches_come_back_whole(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = probe_runner.run(sys.executable, Path(dataloader_probe.__file__), "batches", {"method": method}, deadline=120)
    assert ran.done, ran.errors
    batches = dataloader_probe.ITEMS // 2
    assert (ran.answer["same"], ran.answer["batches"]) == (True, batches)
    assert ran.answer["at"] == f"batch {batches} of {batches}"
