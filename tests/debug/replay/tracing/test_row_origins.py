"""Rows of a batch that are not one for each sample: images that could not be read are left out, pages give crops."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import default_collate

from tests.debug.replay.tracing.traced_step import traced

NAMES = ["a.png", "b.png", "c.png", "d.png"]
Collate = Callable[[list[Any]], Any]


def sample(*rows: int) -> Any:
    """Return a sample of some rows; that of row 9 has a target out of range."""
    generator = torch.Generator().manual_seed(sum(rows))
    return [(torch.rand(3, generator=generator), 7 if row == 9 else 1) for row in rows] or None


def flat(samples: list[Any]) -> Any:
    return default_collate([row for sample_rows in samples if sample_rows is not None for row in sample_rows])


def lists(samples: list[Any]) -> Any:
    rows = [row for sample_rows in samples if sample_rows is not None for row in sample_rows]
    return [row[0] for row in rows], [torch.tensor(row[1]) for row in rows]


def padded(samples: list[Any]) -> Any:
    inputs, targets = lists(samples)
    longer = [row.repeat(1 + len(samples)) for row in inputs[:1]] + inputs[1:]
    return nn.utils.rnn.pad_sequence(longer, batch_first=True)[:, :3], torch.stack(targets)


def fault(out: Path, collate: Collate, samples: Sequence[Any], names: Sequence[str] = NAMES) -> dict[str, Any]:
    """Return the fault that a batch of samples has, put together anew by its collate function."""
    net = nn.Linear(3, 5)
    anew = lambda: (list(names), lambda some: collate([samples[sample_rows] for sample_rows in some]))  # noqa: E731
    job = {"out": str(out), "last_step": 3, "cell": {"trace": True}}
    with pytest.raises(IndexError), traced(net, job) as trace:
        inputs, targets = trace.begin(collate(list(samples)), list(names), 3, 3, anew=anew)
        if isinstance(inputs, Tensor):
            F.cross_entropy(net(inputs), targets)
        for row, target in zip(inputs, targets, strict=True):
            F.cross_entropy(net(row), target)
    return dict(json.loads((out / "trace.json").read_text())["fault"])


@pytest.mark.parametrize("collate", [flat, lists, padded])
@pytest.mark.parametrize(("samples", "name"), [
    ([sample(), sample(1), sample(9), sample(2)], "c.png"),  # one could not be read
    ([sample(), sample(), sample(1), sample(9)], "d.png"),
    ([sample(9), sample(), sample(1), sample(2)], "a.png"),
    ([sample(1, 2), sample(3, 9), sample(4, 5), sample(6, 8)], "b.png"),  # two crops of each page
    ([sample(1, 2, 3), sample(), sample(9), sample()], "c.png"),  # as many rows as samples, by chance
    ([sample(1), sample(2), sample(9), sample(3)], "c.png"),
])  # fmt: skip
def test_the_sample_that_produced_a_row_is_named(tmp_path, collate, samples, name):
    assert fault(tmp_path, collate, samples)["names"] == [name]
