from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from ocrlab.data.dataset import PageOrder
from ocrlab.data.formats.reader import load
from ocrlab.training import loop
from ocrlab.training.jobs import bisect_trial
from ocrlab.training.run_callback import RunCallback


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back what a flipped run changes for good: it is the last thing that its process does."""
    for owner, name in (
        (DataLoader, "__init__"),
        (PageOrder, "__iter__"),
        (RunCallback, "finish_batch"),
        (loop, "load"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))


def test_loaders_start_workers_otherwise_only_where_there_are_any() -> None:
    bisect_trial.patch_loaders(pin_memory=False, start_method="spawn")
    data = TensorDataset(torch.zeros(4))
    assert DataLoader(data, num_workers=1, pin_memory=True).multiprocessing_context.get_start_method() == "spawn"
    assert DataLoader(data, num_workers=1, pin_memory=True).pin_memory is False
    assert DataLoader(data).multiprocessing_context is None


def test_chosen_pages_keep_their_order_and_their_numbers(root: Path, tmp_path: Path) -> None:
    before = [place for place in PageOrder(6, 0, 30) if place[1] in (1, 4)]
    bisect_trial.patch_pages([1, 4], str(tmp_path / "names.json"))
    assert list(PageOrder(6, 0, 30)) == before
    names = [sample.name for sample in load(root / "data_samples", "train").samples]
    assert [sample.name for sample in loop.load(root / "data_samples", "train").samples] == names
    assert json.loads((tmp_path / "names.json").read_text())["names"] == names
    assert len(loop.load(root / "data_samples", "val").samples) == bisect_trial.VAL_PAGES
