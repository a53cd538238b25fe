"""The trainer of a run reads and writes checkpoints as `checkpoint` does."""

from __future__ import annotations

import pytest
import torch

from ocrlab.errors import CheckpointError
from ocrlab.inference import checkpoint
from ocrlab.training.loop import AtomicIO


def test_a_state_of_a_gpu_that_is_not_here_is_read_to_the_host(tmp_path, monkeypatch):
    """Saved by rank 0 of four, resumed on a machine without a GPU: Lightning itself asks for the place it came from."""
    path = tmp_path / "last.ckpt"
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda _storage: "cuda:3")
        torch.save({"ocrlab": {"schema": 1}, "weight": torch.arange(3.0)}, path)
    if torch.cuda.device_count() < 4:
        with pytest.raises(RuntimeError, match="cuda|CUDA"):
            torch.load(path, weights_only=True)
    content = AtomicIO().load_checkpoint(path)
    assert content["weight"].device.type == "cpu"
    assert content["weight"].tolist() == [0, 1, 2]


def test_what_it_writes_is_whole_and_what_is_not_ours_is_refused(tmp_path):
    path = tmp_path / "last.ckpt"
    AtomicIO().save_checkpoint({"ocrlab": {"schema": 1}}, path)
    assert checkpoint.load(path) == {"ocrlab": {"schema": 1}}
    torch.save({"weights": 1}, path)
    with pytest.raises(CheckpointError, match="not written by ocrlab"):
        AtomicIO().load_checkpoint(path)
