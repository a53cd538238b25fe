"""Snapshots: whole or not there, never two at once, bounded in number and time, readable without pickle."""

import collections
import resource
import signal
import threading

import numpy as np
import pytest
import torch

from ocrlab.debug.recorder import snapshots
from ocrlab.debug.recorder.snapshots import OLDER, SHARE, Snapshots
from ocrlab.errors import CheckpointError


def test_two_files_take_turns_and_hold_copies(tmp_path):
    taken = Snapshots(tmp_path, 0, 5, every=1)
    written = []
    taken.written = lambda side, micro, number: written.append((side, micro, number))
    weight = torch.zeros(1000)
    for micro in range(3):
        weight.fill_(micro)
        assert taken.due(micro)
        taken.take({"w": weight}, micro=micro, number=10 + micro)
        weight.fill_(-1)  # what training does while it is written
        taken.close()
    assert written == [(0, 0, 10), (1, 1, 11), (0, 2, 12)]
    assert taken.complete == [1, 2]
    for name, micro in (("a", 2), ("b", 1)):
        content = snapshots.read(tmp_path / f"snapshot-0-{name}.pt")
        assert (content["micro"], content["number"], content["start"]) == (micro, 10 + micro, 5)
        assert torch.equal(content["state"]["w"], torch.full((1000,), float(micro)))
        assert (tmp_path / f"snapshot-0-{name}.pt").stat().st_mode & 0o777 == 0o600
    assert len(list(tmp_path.iterdir())) == 2


def test_never_two_at_once(tmp_path, monkeypatch):
    go = threading.Event()
    monkeypatch.setattr(snapshots, "SMALL", 0)
    monkeypatch.setattr(snapshots, "write", lambda *_, **__: go.wait(20))
    taken = Snapshots(tmp_path, 0, 0, every=1)
    taken.take({"w": torch.zeros(4)}, micro=0, number=0)
    assert not taken.due(50)
    go.set()
    taken.close()
    assert taken.due(50)


def test_copies_from_a_device_are_written_when_they_have_arrived(tmp_path, monkeypatch):
    class Event:
        passed = False

        def query(self):
            return self.passed

        def synchronize(self):
            self.passed = True

    event = Event()
    taken = Snapshots(tmp_path, 0, 0, every=1)
    monkeypatch.setattr(taken, "_copy_events", lambda: [event])
    taken.take({"w": torch.zeros(4)}, micro=0, number=0)
    assert taken.complete == [0], "the first one is waited for"
    event.passed = False
    taken.take({"w": torch.ones(4)}, micro=1, number=1)
    assert not taken.due(2)
    assert taken.complete == [0], "nothing is written of what is still under way"
    event.passed = True
    taken.due(3)
    taken.close()
    assert torch.equal(snapshots.read(tmp_path / "snapshot-0-b.pt")["state"]["w"], torch.ones(4))
    event.passed = False
    taken.take({"w": torch.ones(4)}, micro=4, number=4)
    taken.close()
    assert taken.complete == [1, 4], "at the end it is waited for"


def test_as_often_as_their_share_of_the_time_allows(tmp_path):
    taken = Snapshots(tmp_path, 0, 0, most=100)
    taken.take({"w": torch.zeros(4)}, micro=0, number=0)
    taken.close()
    taken.spent, taken.dearest = 1.0, 1.0
    taken.begun -= 2 / SHARE - 1  # the next one will cost as much as the dearest
    assert not taken.due(50)
    taken.begun -= 2
    assert taken.due(50)
    taken.begun += 150
    assert taken.due(100), "the ring would forget what came after the last one"


def test_what_weights_only_does_not_read_is_left_out_and_named(tmp_path):
    class Mine:
        pass

    content = {
        "ordered": collections.OrderedDict(a=1), "number": np.float64(0.5), "mine": Mine(),
        "nested": {3: (torch.ones(2), [True, None])}, "sparse": torch.eye(3).to_sparse(),
    }  # fmt: skip
    taken = Snapshots(tmp_path, 0, 0)
    taken.take(content, micro=0, number=0)
    read = snapshots.read(tmp_path / "snapshot-0-a.pt")
    assert read["state"]["ordered"] == {"a": 1}
    assert read["state"]["number"] == 0.5
    assert torch.equal(read["state"]["nested"][3][0], torch.ones(2))
    assert read["state"]["nested"][3][1] == [True, None]
    assert [what.split(":")[0] for what in read["left_out"]] == ["state.mine", "state.sparse"]


def test_too_little_disk_space_raises_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshots.shutil, "disk_usage", lambda _: collections.namedtuple("U", "free")(100))
    with pytest.raises(CheckpointError, match="no space for two snapshots"):
        Snapshots(tmp_path, 0, 0).take({"w": torch.zeros(100)}, micro=0, number=0)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_raises_at_the_next_snapshot(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshots.torch, "save", full)
    taken = Snapshots(tmp_path, 0, 0, every=1)
    taken.take({"w": torch.zeros(4)}, micro=0, number=0)
    with pytest.raises(OSError, match="No space"):
        taken.due(1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"garbage"])
def test_what_is_no_snapshot_is_refused_in_words(tmp_path, data):
    (tmp_path / "snapshot-0-a.pt").write_bytes(data)
    with pytest.raises(CheckpointError, match="cannot be read as a snapshot"):
        snapshots.read(tmp_path / "snapshot-0-a.pt")


@pytest.mark.parametrize("older", [True, False])
def test_a_full_disk_raises_its_own_error_and_leaves_the_last_snapshot(tmp_path, older):
    path, spare = tmp_path / "snapshot-0-a.pt", tmp_path / ".spare"
    snapshots.write({"schema": 1, "w": torch.zeros(4)}, path, spare)
    ignored, limit = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            snapshots.write({"schema": 1, "w": torch.zeros(100_000)}, path, spare, older=older)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, ignored)
    assert [*tmp_path.iterdir()] == [path] and torch.equal(snapshots.read(path)["w"], torch.zeros(4))


def test_what_a_killed_process_has_left_is_removed(tmp_path):
    (tmp_path / ".snapshot-0.77.spare").write_bytes(b"half")
    (tmp_path / ".snapshot-0.77.old").write_bytes(b"between two names")
    (tmp_path / ".snapshot-1.78.spare").write_bytes(b"of another rank")
    Snapshots(tmp_path, 0, 0)
    assert [path.name for path in tmp_path.iterdir()] == [".snapshot-1.78.spare"]


@pytest.mark.parametrize("kinds", [OLDER, (*OLDER, torch.float8_e4m3fn, torch.uint16)])
def test_every_type_of_number_comes_back_and_a_cut_file_is_refused(tmp_path, kinds):
    state = {str(kind): torch.arange(35).reshape(5, 7).to(kind) for kind in kinds}
    state |= {"none": torch.zeros(0, 3), "turned": torch.ones(4, 6).t(), "one": torch.tensor(2.5)}
    taken = Snapshots(tmp_path, 0, 0)
    taken.take(state, micro=0, number=0)
    path = tmp_path / "snapshot-0-a.pt"
    read, whole = snapshots.read(path)["state"], path.read_bytes()
    assert whole.startswith(b"PK") == (kinds != OLDER)
    for name, tensor in state.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(read[name].to(torch.complex128), tensor.to(torch.complex128))
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="cannot be read as a snapshot"):
            snapshots.read(path)
