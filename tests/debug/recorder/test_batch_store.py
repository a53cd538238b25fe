"""Raw batches: bounded in number and bytes, and given up alone where they cannot be written."""

import errno
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy
import pytest
import torch

from ocrlab.debug.recorder import batch_store
from ocrlab.errors import DataError
from ocrlab.run_folder import provenance
from tests.debug.recorder.recorded_runs import newest, replay
from tests.debug.recorder.test_loop_recorder import Noisy, Stream, train


def batch(value, size=2):
    return {"x": torch.full((size,), value)}


def there(stored):
    return sorted(path.name for path in stored.folder.iterdir())


def test_stored_batches_are_bounded(tmp_path):
    store = batch_store.BatchStore(tmp_path, 0, most=3)
    names = [store.keep(batch(i)) for i in range(5)]
    assert there(store) == names[2:]
    assert torch.equal(batch_store.read_batch(tmp_path, names[-1])["x"], torch.tensor([4, 4]))


class Box:
    def __init__(self, value):
        self.value = value


def test_only_a_batch_that_needs_its_own_code_to_be_read_is_signed(tmp_path):
    store = batch_store.BatchStore(tmp_path, 0, most=9)
    plain = [batch(1), [(torch.ones(2), "a"), {"b": None, 3: 1.5}], torch.ones(2).bfloat16()]
    strange = [Box(1), {"a": [Box(2)]}, [numpy.ones(3)], torch.nn.Parameter(torch.ones(2)), [0] * 20_000]
    for value in [*plain, *strange]:
        name = store.keep(value)
        signed = provenance.digest_file(store.folder / name).exists()
        assert signed == any(value is other for other in strange)
        batch_store.read_batch(tmp_path, name)
        if signed:
            provenance.digest_file(store.folder / name).unlink()
    for value, number in zip(strange[:3], range(3, 6), strict=True):
        with pytest.raises(DataError, match=r"could run code.*--trust"):
            batch_store.read_batch(tmp_path, f"0-{number}.pt")
        assert type(batch_store.read_batch(tmp_path, f"0-{number}.pt", trust=True)) is type(value)
    assert [len(list(store.folder.iterdir())), store.keep(Box(9)), store.forget(99)] == [8, "0-8.pt", None]
    assert there(store) == []


def test_the_oldest_go_where_all_take_more_bytes_than_there_is_room_for(tmp_path, capsys, monkeypatch):
    store = batch_store.BatchStore(tmp_path, 0, most=512)
    store.keep(batch(0, 1000))
    bounded = batch_store.BatchStore(tmp_path, 0, most=512, limit=3 * store.total_bytes + 100)
    names = [bounded.keep(batch(i, 1000)) for i in range(6)]
    assert there(bounded) == names[3:] and bounded.total_bytes == sum(
        path.stat().st_size for path in bounded.folder.iterdir()
    )
    assert capsys.readouterr().err.count("the last 3 are kept") == 1
    bounded.forget(5)
    assert there(bounded) == names[5:] and bounded.total_bytes == store.total_bytes
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5 * store.total_bytes))
    names.append(bounded.keep(batch(6, 1000)))
    assert there(bounded) == names[6:], "a tenth of what is free; the newest stays all the same"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert batch_store.BatchStore(tmp_path, 0, most=3).limit == batch_store.LIMIT // 4


def test_a_full_disk_is_reported_once_and_switches_off_nothing_else(tmp_path, capsys, monkeypatch):
    original = batch_store.BatchStore._keep

    def full_at_the_fifth(self, batch):
        if self.count == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(self, batch)

    monkeypatch.setattr(batch_store.BatchStore, "_keep", full_at_the_fifth)
    train(tmp_path, Noisy(), batches="raw", snapshot_every=3)
    flight = newest(tmp_path)
    assert capsys.readouterr().err.count("No space left") == 1
    last = flight.steps[-1]
    assert last.micro > 6 and "raw" not in last.order and last.order["indices"] and last.samples
    assert [step.micro for step in flight.steps if "raw" in step.order] == [0, 1, 2, 3]
    assert len(flight.snapshots) == 2 and not list((tmp_path / "flight" / "batches").glob(".*"))
    other = batch_store.BatchStore(tmp_path, 7, most=3)
    assert other.keep(lambda: None) == "" and other.keep(batch(1)) == "", (
        "a value that cannot be pickled does not matter"
    )


FULL = """
import resource, signal, sys, torch
from pathlib import Path
from ocrlab.debug.recorder import batch_store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = batch_store.BatchStore(Path(sys.argv[1]), 0, 9)
store.keep(torch.ones(2000))
resource.setrlimit(resource.RLIMIT_FSIZE, (50000, 50000))
for size in (200000, 2):
    store.keep(torch.ones(size))
print([path.name for path in store.folder.iterdir()])
"""


def test_a_failed_write_leaves_no_file_and_raises_the_disks_error(tmp_path):
    command = [sys.executable, "-c", FULL, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "['0-0.pt']"
    assert done.stderr.count("no more raw batches") == 1 and "OSError: [Errno 27]" in done.stderr


@pytest.mark.parametrize("dataset", [Noisy(), Stream()], ids=["by index", "by position"])
def test_a_batch_whose_file_is_gone_is_rebuilt_with_a_message(tmp_path, monkeypatch, dataset):
    train(tmp_path, dataset, batches="raw", snapshot_every=3)
    files = sorted((tmp_path / "flight" / "batches").glob("*.pt"), key=lambda path: int(path.stem.partition("-")[2]))
    for path in files[:-1]:
        path.unlink()
    result = replay(tmp_path, monkeypatch, lambda: train(tmp_path, dataset, batches="raw", snapshot_every=3))
    assert result["finished"] and all(step["equal"] for step in result["steps"])
    assert [text for text in result["warnings"] if "kept raw are gone" in text]
