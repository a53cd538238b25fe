"""Counters of control groups: what grew since, over every group of the program's own."""

from __future__ import annotations

import pytest

from ocrlab.debug.watch.oom_kill_counters import OomKillCounters
from ocrlab.hardware import cgroup
from ocrlab.records import Reading


@pytest.fixture
def groups(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "memory.events").write_text("oom_kill 5\n")
    monkeypatch.setattr(cgroup, "memory_group", lambda pid: tmp_path / str(pid))
    return tmp_path


@pytest.fixture
def machine(monkeypatch):
    counts = [9]
    monkeypatch.setattr(cgroup, "machine_oom_kills", lambda: Reading("machine_oom_kills", counts[-1]))
    return counts


def test_what_grew_is_counted(groups, machine):
    kills = OomKillCounters()
    machine.append(20)
    assert kills.count() is None
    for group in ("a", "b", "a"):
        kills.note(group)
    assert kills.count() == 0
    (groups / "a" / "memory.events").write_text("oom_kill 7\n")
    assert kills.count() == 2
    kills.note("a")
    assert kills.count() == 2, "the first look counts"
    (groups / "a" / "memory.events").unlink()
    assert kills.count() == 0


def test_a_kill_elsewhere_on_the_machine_proves_nothing(groups, machine):
    (groups / "a" / "cgroup.sane_behavior").write_text("0\n")  # the root of version 1
    kills = OomKillCounters()
    kills.note("a")
    assert kills.count() == 0, "the machine has killed nobody"
    (groups / "a" / "memory.events").write_text("oom_kill 6\n")
    machine.append(10)
    assert kills.count() is None, "the root counts everybody's"
