"""Of a picture only what has changed since the first one is put back."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ocrlab.recording.pictures import Given, Picture
from ocrlab.recording.pictures_back import Back
from ocrlab.recording.pictures_since import differing

NOTHING = Given([], [])


def back(before, after, there):
    """Put back into `there` what has changed from `before` to `after`."""
    first, now = Picture(before, NOTHING), Picture(after, NOTHING)
    held = [t.clone() for t in now.tensors]
    return Back(held, NOTHING).value(json.loads(json.dumps(differing(now.node, first.node))), there)


def names(**values):
    return SimpleNamespace(**values)


@pytest.mark.parametrize(
    "before,after,there,wanted",
    [
        (names(pid=7, best=1), names(pid=7, best=2), names(pid=9, best=1), names(pid=9, best=2)),
        ({"pid": 7, "best": 1}, {"pid": 7, "best": 2}, {"pid": 9, "best": 1}, {"pid": 9, "best": 2}),
        ({"pid": 7, "n": 1}, {"pid": 7}, {"pid": 9, "n": 1}, {"pid": 9}),
        ({(0, 1): 7}, {(0, 1): 7, (0, 2): 8}, {(0, 1): 9}, {(0, 1): 9, (0, 2): 8}),
        ({1: "a", "1": "b"}, {1: "a", "1": "c"}, {1: "x", "1": "y"}, {1: "x", "1": "c"}),
        ({1: {"pid": 7, "n": 1}}, {1: {"pid": 7, "n": 2}}, {1: {"pid": 9}}, {1: {"pid": 9, "n": 2}}),
        ([names(pid=7, n=1)], [names(pid=7, n=2)], [names(pid=9, n=1)], [names(pid=9, n=2)]),
        ([7, 1], [7, 2], [9, 1], [7, 2]),  # a list is put back whole
        ([7], [7, 8], [9], [7, 8]),
        (None, {"pid": 7}, None, {"pid": 7}),
        (names(loss=float("nan")), names(loss=float("nan")), names(loss=0.0), None),
    ],
)  # fmt: skip
def test_what_is_as_it_was_stays_as_it_is_there(before, after, there, wanted):
    made = back(before, after, there)
    assert made == wanted if wanted is not None else made.loss != made.loss


def test_tensors_are_always_put_back_as_only_their_numbers_are_compared():
    held = names(mean=torch.zeros(2), pid=7)
    there = names(mean=torch.zeros(2), pid=9)
    first = Picture(held, NOTHING).node
    held.mean += 1
    now = Picture(held, NOTHING)
    made = Back(now.tensors, NOTHING).value(differing(now.node, first), there)
    assert made.mean.tolist() == [1, 1] and made.pid == 9


class Own(nn.Linear):
    def __init__(self, pid):
        super().__init__(2, 2)
        self.pid, self.calls = pid, 0


def test_attributes_of_modules_and_what_functions_close_over():
    def counter(pid):
        calls = [0]

        def count():
            calls[0] += 1
            return pid, calls[0]

        return count

    own, count = Own(7), counter(7)
    first = [Picture(each, NOTHING).node for each in (own, count)]
    own.calls = 3
    count()
    there = [Own(9), counter(9)]
    for each, was, now in zip((own, count), first, there, strict=True):
        picture = Picture(each, NOTHING)
        Back([t.clone() for t in picture.tensors], NOTHING).value(differing(picture.node, was), now)
    assert (there[0].pid, there[0].calls) == (9, 3) and torch.equal(there[0].weight, own.weight)
    assert there[1]() == (9, 2)
