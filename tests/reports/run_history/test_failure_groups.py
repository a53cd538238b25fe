"""Failures of one fingerprint are one group, with how often it was seen, and when."""

from __future__ import annotations

from ocrlab.reports.run_history.failure_groups import group_failures
from ocrlab.reports.run_history.fingerprint import fingerprint
from ocrlab.reports.run_history.run_list import Run


def failed(name: str, kind: str, started: str, ended: str | None = None) -> Run:
    return Run(name, name, "failed", started, ended, failure=fingerprint({"type": kind, "message": "x"}))


def test_groups() -> None:
    runs = [
        failed("a", "KeyError", "2026-11-01T10:00:00+00:00", "2026-11-01T11:00:00+00:00"),
        failed("b", "KeyError", "2026-11-02T00:30:00+02:00"),  # an hour after a, by another clock
        failed("c", "KeyError", "2026-10-01T10:00:00+00:00"),
        failed("d", "OSError", "2026-11-09T10:00:00+00:00"),
        failed("e", "ValueError", "2026-11-08T10:00:00+00:00"),
        Run("f", "f", "success", "2026-11-01T10:00:00+00:00"),
    ]
    first, second, third = group_failures(runs)
    assert [run.name for run in first.runs] == ["b", "a", "c"]
    assert (first.first, first.last) == ("2026-10-01T10:00:00+00:00", "2026-11-02T00:30:00+02:00")
    assert [second.runs[0].name, third.runs[0].name] == ["d", "e"]  # of equals the one seen last
    assert group_failures([]) == []
