"""The samples of a stream are compared between its workers: a stream that each worker yields whole is reported."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ocrlab.debug.instruments.dataloader import loader_watch


class Stream(IterableDataset[Any]):
    """Rows of 0 to 39: all of them in each worker, its share, random ones, or 40 that are equal."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __iter__(self) -> Any:
        info = get_worker_info()
        own, of = (info.id, info.num_workers) if info is not None else (0, 1)
        if self.kind == "shared":
            yield from ({"x": torch.full((2,), i), "name": str(i)} for i in range(own, 40, of))
        elif self.kind == "random":
            yield from (torch.rand(3) for _ in range(40))
        else:
            yield from ({"x": torch.full((2,), i if self.kind == "whole" else 7), "n": "a"} for i in range(40))


def findings_of(kind: str, workers: int) -> str:
    source = DataLoader(Stream(kind), batch_size=4, num_workers=workers, multiprocessing_context="fork")
    with loader_watch.watch(source) as report:
        for _ in source:
            pass
    return str(report)


@pytest.mark.parametrize("workers", [2, 3])
def test_a_stream_that_each_worker_yields_whole_comes_first(workers: int) -> None:
    findings = findings_of("whole", workers)
    assert findings.startswith(f"All {workers} workers yield the same samples")
    assert f"each sample comes {workers} times an epoch" in findings


@pytest.mark.parametrize("kind", ["shared", "random", "equal"])
def test_other_streams_are_no_such_thing(kind: str) -> None:
    assert "the same samples" not in findings_of(kind, 2)


def test_what_makes_batches_is_named_where_it_fails() -> None:
    def fails(items: Any) -> Any:
        raise RuntimeError("stack expects each tensor to be of equal size")

    source = DataLoader(Stream("shared"), batch_size=4, collate_fn=fails)
    with pytest.raises(RuntimeError), loader_watch.watch(source) as report:
        next(iter(source))
    assert report.finding() == "Loading failed with RuntimeError in collate_fn, which makes batches of the samples"
