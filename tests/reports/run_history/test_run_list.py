"""Whatever lies in a folder, each run is listed as what it is: good, failed, dead, torn, or somebody's trap."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ocrlab import run_folder
from ocrlab.config import schema as configs
from ocrlab.errors import RunError
from ocrlab.reports.run_history.run_list import Run, list_runs, read_progress
from ocrlab.run_folder.owner_process import identity
from tests.run_folder.helpers import living_run


def only(place: Path) -> Run:
    [run] = list_runs([place])
    return run


def put(folder: Path, **files: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / {"success": ".SUCCESS", "failure": ".FAILURE", "running": ".RUNNING"}.get(name, name)).write_text(
            text
        )
    return folder


def record(**more: Any) -> dict[str, Any]:
    started, ended = "2026-11-01T10:00:00+00:00", "2026-11-01T10:02:30+00:00"
    return {"schema": 1, "started": started, "ended": ended, "metrics": {}, "error": None, **more}


def test_a_run_that_did_well(tmp_path: Path) -> None:
    run = run_folder.create(tmp_path, "x", configs.dump(configs.load(overrides=["optim.lr=0.5"])))
    run.succeed({"hmean@0.5": 0.9, "seconds": 7.5, "steps": 20})
    listed = only(tmp_path)
    assert (listed.status, listed.hmean, listed.seconds, listed.final) == ("success", 0.9, 7.5, True)
    assert listed.settings["optim.lr"] == 0.5
    assert listed.path == str(run.path)
    assert (listed.failure, listed.cause, listed.problem) == (None, "", "")


@pytest.mark.parametrize("sentinel", ["success", None])
def test_a_run_whose_loss_is_nan_to_the_end_is_no_success(tmp_path: Path, sentinel: str | None) -> None:
    run = put(tmp_path / "a", **({sentinel: record()} if sentinel else {}))
    sentence = "the loss is nan, and was not finite from batch 5 of 48 on: it learns nothing since. Replay it"
    put(run / "flight", **{"ring-0-0.bin": "", "learned-0.json": {"schema": 1, "lines": [sentence], "weights": {}}})
    listed = only(tmp_path)
    assert (listed.status, listed.why) == ("diverged", sentence.partition(". ")[0])
    put(run / "flight", **{"learned-0.json": {"schema": 1, "lines": ["the loss rose from 1 to 2", 7], "weights": {}}})
    assert only(tmp_path).status == (sentinel or "recorded")


def test_a_run_that_failed_tells_why_and_how_far_it_came(tmp_path: Path) -> None:
    with pytest.raises(KeyError), run_folder.run(tmp_path, "x") as run:
        table = run_folder.Table(run.metrics_file)
        for step in (1, 2, 3):
            table.write({"step": step, "loss": 3 - step})
            if step < 3:
                table.write({"step": step, "hmean@0.5": 0.5 / step, "pages": 4})
        raise KeyError("a")
    listed = only(tmp_path)
    assert (listed.status, listed.hmean, listed.final, listed.metrics["steps"]) == ("failed", 0.5, False, 3)
    assert listed.failure is not None
    assert listed.why == "KeyError in test_a_run_that_failed_tells_why_and_how_far_it_came (test_run_list.py)"
    assert listed.problem == "it has no config.yaml"
    assert listed.seconds is not None


@pytest.mark.parametrize(
    ("verdict", "status"), [("killed", "killed"), ("hung", "hung"), ("failed", "failed"), (7, "failed")]
)
def test_how_it_ended_is_the_verdicts_word(tmp_path: Path, verdict: object, status: str) -> None:
    run = put(tmp_path / "a", failure=record(error={"type": "Killed", "message": "x"}, verdict="host.oom_kill"))
    put(run / "incident", **{"verdict.json": {"schema": 1, "status": verdict, "causes": []}})
    assert (only(tmp_path).status, only(tmp_path).cause) == (status, "host.oom_kill")
    assert only(tmp_path).seconds == 150


def test_a_run_whose_process_is_gone_has_died_and_a_living_process_is_running(tmp_path: Path) -> None:
    with living_run(tmp_path) as (folder, _):
        assert only(tmp_path).status == "running"
    assert only(tmp_path).status == "died"
    assert only(tmp_path).failure is not None
    # Its number now belongs to somebody else: to this process, which began at another time.
    process = json.loads((folder / "flight" / "process.json").read_text())
    (folder / "flight" / "process.json").write_text(json.dumps(process | {"pid": os.getpid()}))
    assert only(tmp_path).status == "died"
    (folder / "flight" / "process.json").write_text(json.dumps(identity()))
    assert only(tmp_path).status == "running"
    (folder / "flight" / "process.json").write_text(json.dumps(identity() | {"host": "elsewhere", "pid": 1}))
    assert only(tmp_path).status == "running"  # it cannot be asked


@pytest.mark.parametrize(("files", "why"), [
    ({"success": '{"schema": 1, "sta'}, "is not JSON"),
    ({"success": ""}, "is not JSON"),
    ({"failure": "[" * 100_000}, "is not JSON"),
    ({"success": {"schema": 99}}, "newer ocrlab"),
    ({"config.yaml": "a: 1"}, "it has no .RUNNING, .SUCCESS or .FAILURE"),
    ({"metrics.csv": "step\n1\n"}, "it has no .RUNNING, .SUCCESS or .FAILURE"),
])  # fmt: skip
def test_a_folder_that_is_torn_is_broken_and_says_why(tmp_path: Path, files: dict[str, object], why: str) -> None:
    put(tmp_path / "20260101-101010-x", **files)
    put(tmp_path / "20260101-101011-y", success=record())
    runs = {run.name: run for run in list_runs([tmp_path])}
    assert (runs["20260101-101010-x"].status, runs["20260101-101011-y"].status) == ("broken", "success")
    assert why in runs["20260101-101010-x"].why


def test_other_folders_and_files_are_no_runs(tmp_path: Path) -> None:
    put(tmp_path / "profiles", trace="x")
    put(tmp_path / ".cache", **{"config.yaml": "a: 1"})
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    assert list_runs([tmp_path]) == []
    (tmp_path / "20260101-101010-x").mkdir()  # a run that died between two system calls
    assert only(tmp_path).why == "the folder is empty"


def test_traps_are_not_walked_into(tmp_path: Path) -> None:
    secret = put(tmp_path / "elsewhere", key="password: hunter2") / "key"
    run = put(tmp_path / "runs" / "a", failure=record(error={"type": "E", "message": "x"}))
    (run / "config.yaml").symlink_to(secret)
    os.mkfifo(run / "metrics.csv")
    (run / "incident").mkdir()
    os.mkfifo(run / "incident" / "verdict.json")
    (run / "incident" / "log_tail.txt").symlink_to(secret)
    pipe = put(tmp_path / "runs" / "b", **{"config.yaml": "a: 1"})
    os.mkfifo(pipe / ".SUCCESS")
    link = put(tmp_path / "runs" / "c", running=record())
    (link / "flight").mkdir()
    os.mkfifo(link / "flight" / "process.json")
    runs = {run.name: run for run in list_runs([tmp_path / "runs"])}
    assert {name: run.status for name, run in runs.items()} == {"a": "failed", "b": "broken", "c": "died"}
    assert "hunter2" not in repr(runs)


def test_the_newest_comes_first_and_a_place_named_twice_counts_once(tmp_path: Path) -> None:
    for number, started in enumerate(("2026-11-02T00:00:00+00:00", "2026-11-03T00:00:00+01:00", "", "2026-11-01")):
        put(tmp_path / f"r{number}", success=record(started=started))
    assert [run.name for run in list_runs([tmp_path])] == ["r1", "r0", "r3", "r2"]
    assert len(list_runs([tmp_path, str(tmp_path / "r1")])) == 4
    assert [run.name for run in list_runs([tmp_path / "r1", tmp_path / "r3"])] == ["r1", "r3"]
    with pytest.raises(RunError, match="cannot be listed"):
        list_runs([tmp_path / "missing"])


def test_metrics_so_far(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    assert read_progress(str(path)) == {}
    path.write_text("step,loss,hmean@0.5,pages\n1,2,,\n2,,0.4,9\n3,1,,\n4,,0.3,9\n5,1,,\n6,tor")
    assert read_progress(str(path)) == {"hmean@0.5": 0.4, "pages": 9, "steps": 5}
    path.write_text("step,hmean@0.5,loss\n1,,2\n2,0.4,\n3,,1\nx,nan,1\n")  # the figure is not the last column
    assert read_progress(str(path)) == {"hmean@0.5": 0.4}
    path.write_text("\n\n\n")
    assert read_progress(str(path)) == {}


def test_a_flight_record_alone_is_no_broken_run(tmp_path: Path) -> None:
    put(tmp_path / "mine" / "flight", **{"ring-0-1.bin": "x", "program.json": {"schema": 1, "time": 1793750400}})
    listed = only(tmp_path)
    assert (listed.status, listed.started, listed.failure) == ("recorded", "2026-11-04T00:00:00+00:00", None)
    assert "only a flight record" in listed.why
    assert only(tmp_path / "mine") == listed
    put(tmp_path / "mine" / "incident", **{"replay.json": "{}"})  # what `ocrlab replay` adds
    assert only(tmp_path) == listed
    (tmp_path / "mine" / "flight" / "program.json").write_text('{"schema": 1, "time": 1e300}')
    assert (only(tmp_path).status, only(tmp_path).started) == ("recorded", "")
    (tmp_path / "mine" / "flight" / "ring-0-1.bin").unlink()
    assert only(tmp_path).status == "broken"
