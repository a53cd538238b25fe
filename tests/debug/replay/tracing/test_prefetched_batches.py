"""A program that fetches batches ahead: whose step and whose samples it is."""

import json
import threading
from typing import Any

import torch
from torch import Tensor, nn

from ocrlab.debug.replay.tracing.nonfinite_tracker import pointer
from ocrlab.debug.replay.tracing.tracer import PrefetchedBatches, traced


def rows(number: int) -> tuple[Tensor, list[str]]:
    return torch.rand(3, 4) + 1, [f"{number}-{letter}" for letter in "abc"]


def test_a_batch_that_is_used_a_step_later_is_followed() -> None:
    ahead, batches = PrefetchedBatches(), [rows(number) for number in range(4)]
    assert ahead.add(*batches[0], None)[1] == batches[0][1]
    ahead.update(set())
    assert ahead.add(*batches[1], None)[1] == batches[1][1]
    storages = {pointer(batches[0][0])}
    assert ahead.is_unknown(storages), "nobody knew"
    ahead.update(storages)
    used, names, anew = ahead.add(*batches[2], "how")
    assert (names, anew) == (batches[1][1], None) and used is batches[1][0]
    assert not ahead.is_unknown({pointer(used)}) and not ahead.is_unknown(set())
    ahead.update({pointer(used), pointer(batches[2][0])})
    assert ahead.lead == 1, "the last one of a walk comes with the one before it"


def test_a_batch_is_unknown_where_another_thread_fetches_or_it_has_no_tensors() -> None:
    ahead = PrefetchedBatches()
    thread = threading.Thread(target=ahead.add, args=(*rows(0), None))
    thread.start()
    thread.join()
    assert ahead.is_unknown(set())
    ahead.add(["a", "b"], ["a", "b"], None)
    assert not ahead.is_unknown({1, 2})


def test_the_sample_of_a_prefetched_batch_is_named(tmp_path) -> None:
    net, job = nn.Linear(4, 2), {"out": str(tmp_path), "last_step": 2, "cell": {"trace": True}}
    fetched: list[Any] = []
    with traced(net, job) as trace:
        for number in range(4):
            batch, names = rows(number)
            if number == 2:
                batch[1, 3] = -1
            fetched.append(trace.begin(batch, names, max(number - 1, 0), number))
            if number:
                value = net(fetched[number - 1].log()).mean()
                value.backward()
                trace.end(value)
    fault = json.loads((tmp_path / "trace.json").read_text())["fault"]
    assert (fault["op"], fault["names"], fault["step"]) == ("aten::log", ["2-b"], 2)
    assert "ahead" not in fault
