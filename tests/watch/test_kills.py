"""Counters of control groups: what grew since, over every group that was seen."""

from __future__ import annotations

from ocrlab.probes import cgroup
from ocrlab.watch.kills import Kills


def test_what_grew_is_counted(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "memory.events").write_text("oom_kill 5\n")
    monkeypatch.setattr(cgroup, "memory_group", lambda pid: tmp_path / str(pid))
    kills = Kills()
    assert kills.count() is None
    for group in ("a", "b", "a"):
        kills.note(group)
    assert kills.count() == 0
    (tmp_path / "a" / "memory.events").write_text("oom_kill 7\n")
    assert kills.count() == 2
    kills.note("a")
    assert kills.count() == 2, "the first look counts"
    (tmp_path / "a" / "memory.events").unlink()
    assert kills.count() == 0
