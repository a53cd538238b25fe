"""The one run folder of all ranks: what its sentinel says of the rank that failed first."""

from __future__ import annotations

from ocrlab.errors import RunError
from ocrlab.flight import RunFolder, now, ranks
from ocrlab.flight.ranks import Member, Ranks
from ocrlab.train import shared_folder

LOST = "[pair.cc:545] Connection closed by peer [127.0.0.1]:17831. This is typically caused by a remote worker."


def test_a_lost_connection_is_told_as_what_ended_the_other_rank(tmp_path):
    folder, mine = RunFolder(tmp_path, now()), Ranks(0, 2, 0, 2, "torchrun")
    (tmp_path / "flight").mkdir()
    lost = shared_folder._first_cause(RuntimeError(LOST), folder, mine)
    assert isinstance(lost, RunError)
    assert "Connection closed by peer" in str(lost) and "typically" not in str(lost)
    assert ranks.secondary(str(lost)), "it is not taken for a cause itself"
    other = Member(Ranks(1, 2, 1, 2, "torchrun"))
    other.begin()
    other.keep(folder.flight)
    other.end("failed", error=ValueError("no corner"))
    assert "rank 1: ValueError: no corner" in str(shared_folder._first_cause(RuntimeError(LOST), folder, mine))
    own = ValueError("mine")
    assert shared_folder._first_cause(own, folder, mine) is own


def test_one_process_alone_has_its_run_folder_as_ever(tmp_path):
    with shared_folder.opened(Member(Ranks()), str(tmp_path), "x", None) as folder:
        folder.succeed({})
    assert (folder.path / ".SUCCESS").exists()
