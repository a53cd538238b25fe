import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from ocrlab.debug.replay.child import batch_feed


class Rows(IterableDataset):
    def __iter__(self):
        for number in range(12):
            yield {"key": f"row-{number}", "values": torch.arange(number % 3 + 1)}


def bags(rows):
    rows = list(rows)
    first = rows.pop(0)  # what changes its samples does not change those that are kept
    values = [first["values"], *(row["values"] for row in rows)]
    return {"key": [first["key"], *(row["key"] for row in rows)], "values": torch.cat(values)}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_of_a_stream_is_put_together_of_some_of_its_samples(workers, monkeypatch):
    monkeypatch.setattr(torch, "save", lambda *_, **__: None)  # as in a replay
    loader = DataLoader(Rows(), 4, collate_fn=bags, num_workers=workers)
    batches = list(batch_feed.keep_samples(loader, 2))
    names, make = batch_feed.stream_parts(bags, batches[2].samples)
    assert names == batches[2].data["key"] and len(names) == 4
    assert make([1, 3])["key"] == [names[1], names[3]]
    assert make(range(4))["values"].tolist() == batches[2].data["values"].tolist()
    assert batches[0].samples == b"" or workers


def test_nothing_is_stored_of_what_is_no_list_or_too_much(monkeypatch):
    assert batch_feed.stream_parts(bags, b"") is None
    keeping = batch_feed.SampleKeepingCollate(lambda value: value, 0)
    assert keeping(torch.ones(1)).samples == b""
    monkeypatch.setattr(batch_feed, "MOST_SAMPLE_BYTES", 3)
    assert keeping([torch.ones(1)]).samples == b""
