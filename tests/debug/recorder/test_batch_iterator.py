import pytest
import torch
from torch import nn

from ocrlab.debug.recorder.manual_loop import recording


@pytest.fixture
def rec(tmp_path):
    net = nn.Linear(1, 1)
    with recording(tmp_path, net, torch.optim.SGD(net.parameters(), 0.1)) as loop:
        yield loop


DATA = [torch.full((1, 1), float(i)) for i in range(3)]


def test_batches_that_are_asked_for_once_are_walked_over_each_epoch(rec):
    batches = rec.batches(DATA)
    assert len(batches) == 3
    assert [[int(b) for b in batches] for _ in range(3)] == [[0, 1, 2]] * 3
    assert [taken for taken, _ in rec.walks] == [3, 3, 3]


def test_a_for_loop_continues_after_next_and_the_following_one_starts_over(rec):
    batches = rec.batches(DATA)
    assert int(next(batches)) == 0
    assert [int(b) for b in batches] == [1, 2]
    assert [int(b) for b in batches] == [0, 1, 2]
    assert [int(next(batches)) for _ in DATA] == [0, 1, 2]
    assert next(batches, None) is None
    assert next(batches, None) is None


def test_a_generator_has_no_length_and_a_single_pass(rec):
    batches = rec.batches(b for b in DATA)
    with pytest.raises(TypeError):
        len(batches)
    assert len(list(batches)) == 3
    assert list(batches) == []
