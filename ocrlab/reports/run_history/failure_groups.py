"""Failures of one fingerprint as one: how often it came, when first and last, and in which run to look."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ocrlab.reports.run_history.fingerprint import Fingerprint
from ocrlab.reports.run_history.run_list import Run, moment


@dataclass(frozen=True)
class Group:
    """All runs with the same failure, newest first; `first` and `last` are when it was seen (ISO 8601, UTC)."""

    failure: Fingerprint
    runs: tuple[Run, ...]

    @property
    def first(self) -> str:
        """When it was seen first."""
        return failure_time(self.runs[-1])

    @property
    def last(self) -> str:
        """When it was seen last."""
        return failure_time(self.runs[0])


def group_failures(runs: Iterable[Run]) -> list[Group]:
    """Return the failures of runs by fingerprint, the most frequent first, of equals the one seen last."""
    by_id: dict[str, list[Run]] = {}
    for run in runs:
        if run.failure:
            by_id.setdefault(run.failure.id, []).append(run)
    groups = []
    for same in by_id.values():
        same.sort(key=lambda run: moment(failure_time(run)), reverse=True)
        assert same[0].failure is not None, "only failures were taken"
        groups.append(Group(same[0].failure, tuple(same)))
    return sorted(groups, key=lambda group: (len(group.runs), moment(group.last)), reverse=True)


def failure_time(run: Run) -> str:
    """Return when a run failed, as far as that is known."""
    return run.ended or run.started
