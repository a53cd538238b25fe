"""A program that fetches batches ahead, or in another thread: the step and the samples of a fault stay open."""

import json
import threading
from typing import Any

import pytest
import torch
from torch import nn

from tests.debug.replay.tracing.traced_step import traced


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_batch_that_is_used_a_step_later_leaves_step_and_sample_open(tmp_path, ahead):
    net, job = nn.Linear(4, 2), {"out": str(tmp_path), "last_step": 2, "cell": {"trace": True}}
    fetched: list[Any] = []
    with traced(net, job) as trace:
        for number in range(3 + ahead):
            batch = torch.rand(3, 4) + 1
            if number == 2:
                batch[1, 3] = -1
            fetched.append(trace.begin(batch, [f"{number}-{letter}" for letter in "abc"], min(number, 2), number))
            if number >= ahead:
                value = net(fetched[number - ahead].log()).mean()
                value.backward()
                trace.end(value)
    fault = json.loads((tmp_path / "trace.json").read_text())["fault"]
    assert fault["op"] == "aten::log" and fault.get("ahead", False) is bool(ahead)
    assert ahead or fault["names"] == ["2-b"]


def test_a_batch_that_another_thread_fetches_leaves_them_open_too(tmp_path):
    net, batch = nn.Linear(4, 2), torch.rand(3, 4)
    with pytest.raises(RuntimeError), traced(net, {"out": str(tmp_path), "last_step": 0, "cell": {"trace": True}}) as t:
        thread = threading.Thread(target=t.begin, args=(batch, ["a", "b", "c"], 0, 0))
        thread.start()
        thread.join()
        net(batch[:, :3])
    assert json.loads((tmp_path / "trace.json").read_text())["fault"]["ahead"] is True
