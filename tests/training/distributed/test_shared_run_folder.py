"""The one run folder of all ranks: what its sentinel says of the rank that failed first."""

import pytest

from ocrlab.errors import RunError, WeightsError
from ocrlab.run_folder import RunFolder, launcher, now
from ocrlab.run_folder.exception_record import describe
from ocrlab.run_folder.launcher import RankRecord, Ranks
from ocrlab.training.distributed import shared_run_folder

LOST = "[pair.cc:545] Connection closed by peer [127.0.0.1]:17831. This is typically caused by a remote worker."


def test_a_lost_connection_is_reported_as_what_ended_the_other_rank(tmp_path):
    folder, mine = RunFolder(tmp_path, now()), Ranks(0, 2, 0, 2, "torchrun")
    (tmp_path / "flight").mkdir()
    lost = shared_run_folder._first_cause(RuntimeError(LOST), folder, mine)
    assert isinstance(lost, RunError)
    assert "Connection closed by peer" in str(lost) and "typically" not in str(lost)
    assert launcher.secondary(describe(lost)), "it is not taken for a cause itself"
    ended = SystemExit(143)
    assert shared_run_folder._first_cause(ended, folder, mine) is ended
    other = RankRecord(Ranks(1, 2, 1, 2, "torchrun"))
    other.begin()
    other.keep(folder.flight)
    other.end("failed", error=ValueError("no corner"))
    assert "rank 1: ValueError: no corner" in str(shared_run_folder._first_cause(RuntimeError(LOST), folder, mine))
    cause = shared_run_folder._first_cause(ended, folder, mine)
    assert "rank 1: ValueError: no corner" in str(cause), "the launcher ends the others, too"
    assert launcher.secondary(describe(cause))
    own = ValueError("mine")
    assert shared_run_folder._first_cause(own, folder, mine) is own


def test_a_process_alone_has_its_run_folder_as_ever(tmp_path):
    with shared_run_folder.open_shared(RankRecord(Ranks()), str(tmp_path), "x", None) as folder:
        folder.succeed({})
    assert (folder.path / ".SUCCESS").exists()


def test_an_own_error_goes_out_as_it_was_raised(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_run_folder, "broadcast", lambda _ranks, value: value)
    monkeypatch.setattr(shared_run_folder, "gather", lambda _ranks, value: [value])
    mine = RankRecord(Ranks(0, 2, 0, 2, "torchrun"))
    mine.begin()
    with pytest.raises(WeightsError) as caught, shared_run_folder.open_shared(mine, str(tmp_path), "x", None):
        raise WeightsError("no weights", got="<urlopen error [Errno 111] Connection refused>")
    assert caught.value.__cause__ is None, "not itself: whoever walks along causes would never arrive"


def test_a_folder_that_a_single_rank_cannot_use_is_about_that_rank(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_run_folder, "gather", lambda _ranks, value: [value, ("it is not there", "far")])
    folder = RunFolder(tmp_path, now())
    (tmp_path / "flight").mkdir()
    (tmp_path / ".RUNNING").touch()
    with pytest.raises(RunError, match="Rank 1 on far cannot use") as caught:
        shared_run_folder._check_visible(Ranks(0, 2, 0, 2, "torchrun"), folder)
    assert caught.value.rank == 1
