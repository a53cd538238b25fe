"""The parts that both ways of recording share: dead CUDA contexts, kept batches, counted walks, whole states."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from ocrlab.errors import CheckpointError, DataError
from ocrlab.flight.ring_layout import Step
from ocrlab.flight.ring_read import name_of
from ocrlab.train import feed, loading, raw, restored_lightning, tape, walks
from ocrlab.train.held import Held


def test_a_dead_context_is_told_from_other_errors():
    error = ValueError("while logging")
    error.__cause__ = RuntimeError("CUDA error: an illegal memory access was encountered")
    assert tape.of_cuda(error)
    assert not tape.of_cuda(torch.cuda.OutOfMemoryError("CUDA out of memory"))
    assert not tape.of_cuda(ValueError("shape"))


def test_kept_batches_are_bounded(tmp_path):
    kept = raw.Raw(tmp_path, 0, most=3)
    names = [kept.keep({"x": torch.full((2,), i)}) for i in range(5)]
    assert sorted(path.name for path in kept.folder.iterdir()) == names[2:]
    assert torch.equal(raw.read(tmp_path, names[-1])["x"], torch.tensor([4, 4]))


def test_a_walk_is_counted_and_another_walks_states_are_refused(tmp_path):
    counted = walks.Counted([1, 2], lambda *_: None, lambda walk: walks.note(tmp_path, 0, 0, walk))
    assert (list(counted), len(counted)) == ([1, 2], 2)
    assert [told.order["position"] for told in counted.taken] == [0, 1]
    assert set(walks.noted(tmp_path, 0, 0, 0)) == {"python", "numpy", "torch"}
    with pytest.raises(DataError, match="another walk"):
        walks.noted(tmp_path, 0, 0, 4)


def test_parts_that_changed_are_refused_in_words():
    net = nn.Linear(2, 2)
    state = Held(net, torch.optim.SGD(net.parameters(), 0.1), None, None, None).state(0)
    with pytest.raises(CheckpointError, match="other parts"):
        Held(net, None, None, None, None).load(state)


def test_a_record_without_indices_says_what_to_do():
    with pytest.raises(DataError, match="batches=raw"):
        feed.indices(Step(0, 0))


def test_a_loader_of_another_make_is_left_alone(tmp_path):
    class Own(DataLoader):
        def _get_iterator(self):
            return iter(())

    assert not loading.can_be_watched(Own([1]))
    assert loading.can_be_watched(DataLoader([1]))
    assert callable(restored_lightning.start)
    with pytest.raises(DataError, match="not the file of a ring"):
        name_of(tmp_path / "ring.bin")
