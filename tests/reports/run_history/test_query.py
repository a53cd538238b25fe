"""Filters and orders of runs, and the settings in which they differ."""

from datetime import datetime, timezone
from typing import Any

import pytest

from ocrlab.errors import ConfigError
from ocrlab.reports.run_history import query
from ocrlab.reports.run_history.fingerprint import fingerprint
from ocrlab.reports.run_history.run_list import Run

NAN = float("nan")


def build_run(name: str, status: str = "success", hmean: float | None = None, **more: Any) -> Run:
    metrics = {} if hmean is None else {"hmean@0.5": hmean, "loss": 1 - hmean}
    settings = {key.replace("__", "."): value for key, value in more.pop("settings", {}).items()}
    return Run(f"runs/{name}", name, status, metrics=metrics, final=True, settings=settings, **more)


RUNS = [
    build_run(
        "a", hmean=0.5, started="2026-11-01T10:00:00+00:00", settings={"optim__lr": 0.001, "encoder": "resnet18"}
    ),
    build_run("b", hmean=0.9, started="2026-11-03T10:00:00+00:00", settings={"optim__lr": 0.01, "encoder": "resnet50"}),
    build_run("c", "failed", cause="host.oom_kill", why="host.oom_kill: SIGKILL", started="2026-11-02T10:00:00+00:00"),
    build_run("d", "died", settings={"optim__lr": 0.001, "encoder": "mobilenet", "other__on": True}, hmean=NAN),
]


def names(runs: list[Run]) -> str:
    return "".join(run.name for run in runs)


@pytest.mark.parametrize(("words", "left"), [
    ("lr=1e-3", "ad"),
    ("optim.lr=0.001", "ad"),
    ("lr!=0.001", "b"),  # a run that has no such setting meets nothing
    ("lr>0.001", "b"),
    ("lr>=0.001", "abd"),
    ("encoder=resnet*", "ab"),
    ("encoder=resnet18", "a"),
    ("encoder!=resnet*", "d"),
    ("encoder>3", ""),
    ("hmean>0.6", "b"),
    ("hmean@0.5<=0.5", "a"),
    ("loss<0.2", "b"),
    ("on=true", "d"),
    ("on=1", ""),
    ("other.on!=false", "d"),
    ("lr=0.001 encoder=resnet18", "a"),
])  # fmt: skip
def test_conditions(words: str, left: str) -> None:
    conditions = [condition for word in words.split() if (condition := query.condition(word))]
    assert len(conditions) == len(words.split())
    if words == "on=1":
        assert names(query.filter_by_conditions(RUNS, conditions)) in (
            "",
            "d",
        )  # true is 1 for Python, and nobody writes it
    else:
        assert names(query.filter_by_conditions(RUNS, conditions)) == left


def test_a_key_that_no_run_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"None of these runs has lrr.*Did you mean (optim\.)?lr\?"):
        query.filter_by_conditions(RUNS, [query.Condition("lrr", "=", "1")])
    double = [build_run("x", settings={"a__on": 1, "b__on": 2})]
    with pytest.raises(ConfigError, match=r"several settings.*a\.on, b\.on"):
        query.filter_by_conditions(double, [query.Condition("on", "=", "1")])
    assert query.filter_by_conditions([], [query.Condition("lr", "=", "1")]) == []


def test_status_cause_name_and_failure() -> None:
    assert names(query.filter_by_status(RUNS, ["failure"])) == "cd"
    assert names(query.filter_by_status(RUNS, ["success", "died"])) == "abd"
    with pytest.raises(ConfigError, match="Did you mean failed"):
        query.filter_by_status(RUNS, ["faild"])
    for text in ("host", "host.oom_kill", "*oom*", "sigkill", "hos"):
        assert names(query.filter_by_cause(RUNS, text)) == "c"
    assert names(query.filter_by_cause(RUNS, "gpumem")) == ""
    assert names(query.filter_by_name(RUNS, "A")) == "a"
    assert names(query.filter_by_name(RUNS, "[ab]")) == "ab"
    assert query.filter_by_failure(RUNS, "12") == []


def test_since() -> None:
    now = datetime(2026, 11, 3, 12, tzinfo=timezone.utc)
    assert names(query.filter_since(RUNS, "3h", now)) == "b"
    assert names(query.filter_since(RUNS, "1.5d", now)) == "bc"
    assert names(query.filter_since(RUNS, "2026-11-02T12:00:00+00:00", now)) == "b"
    assert names(query.filter_since(RUNS, "1w", now)) == "abc"
    for text in ("yesterday", "3", "-3d", "999999w9", ""):
        with pytest.raises(ConfigError, match="--since cannot be read"):
            query.filter_since(RUNS, text, now)


def test_orders() -> None:
    assert names(query.sort_runs(RUNS, "hmean")) == "bacd"  # without a figure, and with NaN: last
    assert names(query.sort_runs(RUNS, "hmean", reverse=True)) == "abcd"  # and last also the other way round
    assert names(query.sort_runs(RUNS, "lr")) == "badc"
    assert names(query.sort_runs(RUNS, "encoder")) == "dabc"
    assert names(query.sort_runs(RUNS, "name")) == "abcd"
    assert names(query.sort_runs(RUNS, "started")) == "bcad"
    with pytest.raises(ConfigError, match="None of these runs has speed"):
        query.sort_runs(RUNS, "speed")


def test_differing_settings() -> None:
    assert query.differing_settings(RUNS) == ["optim.lr", "encoder"]  # `other.on` is known to one only
    assert query.common_settings(RUNS, ["optim.lr", "encoder"]) == {"optim.lr": 0.001}
    assert query.differing_settings([]) == query.differing_settings(RUNS[:1]) == []
    older = [
        build_run("x", settings={"a": 1}),
        build_run("y", settings={"a": 1, "new": 3}),
        build_run("z", settings={"a": 1, "new": 4}),
    ]
    assert query.differing_settings(older) == ["new"]
    where = [
        build_run("x", settings={"name": "x", "runs": "r", "seed": 1}),
        build_run("y", settings={"name": "y", "runs": "q"}),
    ]
    assert query.differing_settings(where) == []


def failed(name: str, kind: str, started: str, ended: str | None = None) -> Run:
    return Run(name, name, "failed", started, ended, failure=fingerprint({"type": kind, "message": "x"}))


def test_failures_with_the_same_fingerprint_form_a_group() -> None:
    runs = [
        failed("a", "KeyError", "2026-11-01T10:00:00+00:00", "2026-11-01T11:00:00+00:00"),
        failed("b", "KeyError", "2026-11-02T00:30:00+02:00"),  # an hour after a, by another clock
        failed("c", "KeyError", "2026-10-01T10:00:00+00:00"),
        failed("d", "OSError", "2026-11-09T10:00:00+00:00"),
        failed("e", "ValueError", "2026-11-08T10:00:00+00:00"),
        Run("f", "f", "success", "2026-11-01T10:00:00+00:00"),
    ]
    first, second, third = query.group_failures(runs)
    assert [run.name for run in first.runs] == ["b", "a", "c"]
    assert (first.first, first.last) == ("2026-10-01T10:00:00+00:00", "2026-11-02T00:30:00+02:00")
    assert [second.runs[0].name, third.runs[0].name] == ["d", "e"]  # of equals the one seen last
    assert query.group_failures([]) == []
