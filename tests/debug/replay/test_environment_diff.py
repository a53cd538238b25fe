"""Changes since a run are reported, and nothing that is unknown."""

from __future__ import annotations

import json
import time
from importlib import metadata
from pathlib import Path

from ocrlab.debug.replay import recorded_step

OLD = time.time() - 1000


def test_a_page_and_a_package_that_changed_are_reported(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.png").write_text("new")
    (tmp_path / "config.yaml").write_text(f"schema: 1\ndata: {tmp_path}/data\n")
    versions = {"numpy": "0.1", "pytest": metadata.version("pytest"), "no-such-package": "1"}
    (tmp_path / "environment.json").write_text(json.dumps({"packages": versions}))
    changes = recorded_step.find_changes(
        tmp_path, {"time": OLD, "cwd": str(tmp_path)}, ["a.png", "b.png", "x" * 300, "\0"]
    )
    assert changes[0] == "written after the run began: a.png"
    assert (
        changes[1].startswith("packages have changed: numpy 0.1 is ") and "no-such-package 1 is none now" in changes[1]
    )
    assert "pytest" not in changes[1]


def test_what_is_as_it_was_or_unknown_is_not_reported(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("old")
    (tmp_path / "environment.json").write_text("{torn")
    assert recorded_step.find_changes(tmp_path, {"time": time.time() + 10, "cwd": str(tmp_path)}, ["a.png"]) == []
    assert recorded_step.find_changes(tmp_path, {}, ["a.png"]) == []


def test_a_script_that_is_gone_or_edited_is_reported(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("new")
    program = {"time": OLD, "cwd": str(tmp_path), "argv": ["python", "x.py", "gone.yaml"]}
    assert recorded_step.find_changes(tmp_path, program, []) == [
        "x.py has changed since the run began",
        "gone.yaml is gone: it was started with it",
    ]
