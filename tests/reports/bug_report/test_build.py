"""A bug report fills itself in from whatever was left, and says what it does not know."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from ocrlab import run_folder
from ocrlab.debug.diagnosis import classify, verdict_files
from ocrlab.debug.flight_record import program_info
from ocrlab.errors import DataError
from ocrlab.records import Incident
from ocrlab.reports.bug_report import build
from ocrlab.reports.bug_report.sections import command, environment, how_far, title
from ocrlab.reports.bug_report.sources import collect
from ocrlab.run_folder.owner_process import identity

LOG = """epoch 1 step=3 loss=0.5
Traceback (most recent call last):
  File "/x/train.py", line 12, in <module>
    main()
  File "/x/train.py", line 9, in read
    boxes[7]
IndexError: index 7 is out of bounds for axis 0 with size 4
"""
SECTIONS = ("Summary", "Environment", "Steps to reproduce", "Expected and actual", "Stack", "Impact", "Hypotheses")
SECTIONS += ("Ruled out", "Proposed fix", "Tests", "Progress", "Not known")


def crashed(runs: Path, log: str = LOG, status: str = "failed", **facts: Any) -> Path:
    """Return a run folder as `ocrlab watch` leaves it."""
    folder = run_folder.create(runs, "train")
    incident = Incident(status, 1 if status == "failed" else None, None, {"log_tail.txt": log}, "", facts)
    verdict_files.write_verdict(folder.incident, classify.classify(incident), incident)
    folder.fail({"type": "Failed", "message": "failed, exit status 1", "where": None}, verdict="data.index_range")
    return folder.path


def rendered(path: Path, verified: dict[str, Any] | None = None) -> str:
    report = build.build(collect(path), verified)
    for name in SECTIONS:
        assert f"## {name}\n" in report.markdown and f"<h2>{name}</h2>" in report.html, name
    return report.markdown


def test_a_run_that_failed(runs: Path) -> None:
    report = build.build(collect(crashed(runs, run_seconds=3.25)))
    assert report.title == "IndexError: index 7 is out of bounds for axis 0 with size 4 in read (train.py)"
    assert report.front["status"] == "open" and report.front["category"] == "data"
    text = rendered(runs / next(runs.iterdir()).name)
    for line in (
        "`data.index_range`",
        "`log_tail.txt:7` `IndexError: index 7 is out of bounds",
        "It ended with exit status 1 after 3.2 s.",
        "in `read`, `/x/train.py:9`",
        "- [x] failure recorded",
        "- [ ] fix tried",
        "Not verified",
    ):
        assert line in text, line


def test_the_id_is_that_of_the_failure_not_of_the_run(tmp_path: Path) -> None:
    first, same = crashed(tmp_path / "a"), crashed(tmp_path / "b", LOG.replace("line 9", "line 19").replace("7", "8"))
    different = crashed(tmp_path / "c", LOG.replace("in read", "in write"))
    names = [build.build(collect(path)).id for path in (first, same, different)]
    assert names[0] == names[1] != names[2] and names[0].startswith("OCR-")


def test_runs_beside_it_that_failed_alike_are_counted(runs: Path) -> None:
    crashed(runs)
    crashed(runs, LOG.replace("IndexError: index", "ValueError: index"))
    path = crashed(runs)
    assert "1 of the 2 other runs beside it failed in the same way" in rendered(path)
    assert collect(path).siblings() == (1, 2)


@pytest.mark.parametrize(
    "words, program",
    [
        (["python", "-m", "ocrlab", "watch", "--silence", "9", "--", "python", "t.py"], ["python", "t.py"]),
        (["python", "/v/bin/ocrlab", "train", "lr=1"], ["ocrlab", "train", "lr=1"]),
        (["python", "mine.py"], ["python", "mine.py"]),
        (["python", "-m", "ipykernel_launcher", "-f", "x"], None),
        (["python", "-m", "ocrlab", "watch"], None),
        (None, None),
        ([1, 2], None),
    ],
)
def test_the_command_is_that_of_the_program(words: Any, program: Any, runs: Path) -> None:
    sources = collect(crashed(runs))
    sources.process["command"] = words
    assert command(sources) == program
    assert ("The command is unknown" in build.build(sources).markdown) == (program is None)


def test_what_running_it_again_showed(runs: Path) -> None:
    row = {"same": True, "told": "data.index_range", "seconds": 1.5}
    ran = {"wanted": "data.index_range: x", "same": 1, "runs": [row, {**row, "same": False, "told": "passed"}]}
    path = crashed(runs)
    text = rendered(path, ran)
    assert (
        "the same failure occurred in 1 of 2 runs" in text
        and "status: reproduced" in text
        and "- [x] reproduced" in text
    )
    assert "status: not reproduced" in rendered(path, {**ran, "same": 0})
    assert "could not be verified: it was elsewhere" in rendered(path, {"why": "it was elsewhere", "runs": []})


def test_results_of_replay_and_bisect(runs: Path) -> None:
    path = crashed(runs)
    fault = {"kind": "exception", "path": "decoder.fusion", "exception": "IndexError: x", "step": 3}
    cells = [{"cell": "as it was", "fault": fault, "seconds": 2.0}, {"cell": "fp32", "fault": None, "seconds": 1.0}]
    replay = {
        "schema": 1,
        "answer": "first fault at step 3, forward",
        "fault": fault,
        "reproduced": True,
        "cells": cells,
    }
    run_folder.write_json(path / "incident" / "replay.json", replay)
    factors = [{"name": "workers"}, {"name": "compile"}]
    cells.append({"cell": "anomaly mode", "fault": None, "seconds": 1.0})
    table = [{"flipped": ["workers"], "ended": "passed", "seconds": 3.0}]
    bisect = {"status": "found", "sentence": "it comes from workers (4)", "culprits": ["workers"], "posterior": 0.97}
    bisect |= {"until_mended": "runtime.workers=0", "factors": factors, "table": table}
    run_folder.write_json(path / "incident" / "bisect.json", bisect)
    text = rendered(path)
    for line in (
        "status: reproduced",
        "| Setting `workers` | supported | 0.97 |",
        "| Setting `compile` | refuted |",
        "Until it is fixed: `runtime.workers=0`, as `bisect.json` found, where 1 of 1 runs with it passed.",
        "In `replay.json` the step that failed had no fault with `fp32`.",
        "The last of these was not tried",
        "| `as it was` | `IndexError: x in decoder.fusion` | 2.0 |",
        "- [x] first fault placed",
        "- [x] a workaround tried",
    ):
        assert line in text, line
    assert "Not tried" not in text and "no fault with `anomaly mode`" not in text


def test_the_command_of_a_recorder_in_somebodys_own_program(tmp_path: Path) -> None:
    for name in ("flight", "incident"):
        (tmp_path / "mine" / name).mkdir(parents=True)
    program_info.write(tmp_path / "mine" / "flight", "loop")
    replay = {"schema": 1, "answer": "x", "fault": {"kind": "x"}}
    run_folder.write_json(tmp_path / "mine" / "incident" / "replay.json", replay)
    sources = collect(tmp_path / "mine")
    assert command(sources) == sys.orig_argv and sources.process["folder"] == os.getcwd() and sources.own
    assert "The command is unknown" not in build.build(sources).markdown


def test_numbers_that_are_none_are_a_failure_also_of_a_run_that_ended_well(runs: Path) -> None:
    folder = run_folder.create(runs, "train")
    folder.metrics_file.write_text("step,loss\n1,0.5\n2,nan\n3,nan\n")
    folder.succeed({"loss": 1.0})
    text, sources = rendered(folder.path), collect(folder.path)
    assert title(sources) == "loss becomes nan" and how_far(sources).startswith("step 3 in ")
    assert "# loss becomes nan" in text and "`loss` is `nan` from line 3 of `metrics.csv`" in text


def test_a_hang_and_out_of_memory_and_a_run_that_is_gone(tmp_path: Path) -> None:
    hang = crashed(tmp_path / "a", "epoch 1\n", "hung", silent_seconds=60.0, run_seconds=80.0)
    assert "It hung: it stopped making progress" in rendered(hang) and "It made no progress for 60 s." in rendered(hang)
    oom = crashed(tmp_path / "b", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    assert "category: gpu" in rendered(oom) or "gpumem" in rendered(oom)
    gone = run_folder.create(tmp_path / "c", "x").path
    process = json.loads((gone / "flight" / "process.json").read_text())
    (gone / "flight" / "process.json").write_text(json.dumps({**process, "pid": 2**22 + 5}))
    assert "Its process is gone and left no message." in rendered(gone)


@pytest.mark.parametrize("torn", ["{", "[]", '{"schema": 1, "causes": 3}', "\x00\xff", "[" * 100_000])
def test_half_written_folders_are_reported_as_far_as_they_go(torn: str, runs: Path) -> None:
    path = crashed(runs)
    for name in ("incident/verdict.json", "incident/facts.json", "environment.json", "flight/process.json"):
        (path / name).write_text(torn)
    (path / "incident" / "replay.json").write_text(torn)
    (path / "incident" / "bisect.json").write_text('{"table": 3, "factors": [1], "culprits": "x", "status": "found"}')
    (path / "metrics.csv").write_text("step,loss\n1,0.5\n2")
    assert "IndexError" in rendered(path)


def test_a_folder_without_a_sentinel_and_an_incident_alone(runs: Path, tmp_path: Path) -> None:
    path = crashed(runs)
    alone = tmp_path / "sent-to-me"
    (path / "incident").rename(alone)
    text = rendered(alone)
    assert "`data.index_range`" in text and "how it ended is known from its verdict and logs only" in text
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="contains no log"):
        collect(tmp_path / "empty")
    with pytest.raises(DataError, match="not there"):
        collect(tmp_path / "gone")


def test_a_link_that_leads_out_of_a_strangers_folder_is_refused(runs: Path, tmp_path: Path) -> None:
    path = crashed(runs)
    (tmp_path / "mine.txt").write_text("private words\n")
    (path / "incident" / "log_tail.txt").unlink()
    (path / "incident" / "log_tail.txt").symlink_to(tmp_path / "mine.txt")
    with pytest.raises(DataError, match="leads out of"):
        collect(path)


def test_no_names_and_no_secrets_also_where_markdown_escapes_them(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "zoe_quux")
    monkeypatch.setattr(socket, "gethostname", lambda: "lab_of_zoe")
    log = LOG.replace("/x/train.py", "/data/zoe_quux/lab_of_zoe/train.py").replace("index 7", "key sk-" + "aB3_" * 8)
    report = build.build(collect(crashed(runs, log)))
    for text in (report.markdown, report.html):
        assert "quux" not in text and "of_zoe" not in text and "of\\_zoe" not in text and "aB3" not in text
    assert report.redacted > 0 and f"{report.redacted} places replaced" in report.markdown


def test_older_reports_stay_with_what_somebody_wrote_into_them(runs: Path) -> None:
    path = crashed(runs)
    report = build.build(collect(path))
    first = build.write(report, path / "incident", "bug-1")
    assert build.write(report, path / "incident", "bug-1") == first, "the same again is the same file"
    first[0].write_text("I wrote this")
    second = build.write(report, path / "incident", "bug-1")
    assert second[0].name == "bug-1-2.md" and first[0].read_text() == "I wrote this"


def test_a_notebook_that_failed(tmp_path: Path) -> None:
    error = new_output("error", ename="ValueError", evalue="bad page", traceback=LOG.splitlines())
    notebook = new_notebook(cells=[new_code_cell("read()", outputs=[error])])
    notebook.metadata["papermill"] = {"input_path": "03_train.ipynb", "parameters": {"batch_size": 4}}
    nbformat.write(notebook, tmp_path / "out.ipynb")
    text = rendered(tmp_path / "out.ipynb")
    assert "ocrlab run 03_train.ipynb -p batch_size 4" in text and "Every cell runs to its end." in text


def test_the_environment_is_the_runs_or_this_machines_or_unknown(runs: Path) -> None:
    path = crashed(runs)
    assert "when this report was written" in rendered(path)
    run_folder.write_json(path / "environment.json", {"schema": 1, "python": "3.9.1", "packages": {"torch": "1.2"}})
    assert "`3.9.1`" in rendered(path) and "Recorded by the run" in rendered(path)
    (path / "environment.json").unlink()
    run_folder.write_json(path / "flight" / "process.json", {**identity(), "host": "elsewhere"})
    (path / "incident" / "facts.json").unlink(missing_ok=True)
    sources = collect(path)
    sources.incident.facts.clear()
    assert "Unknown: nothing was recorded" in str(environment(sources))
