"""Sentinels are read with suspicion: dead processes, other versions, torn or strange content, two of them at once."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from ocrlab.errors import DataError, RunError
from ocrlab.run_folder.status_file import list_runs, newest, running_process, status


def put(folder: Path, name: str, content: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_a_live_run_reads_as_running_and_a_killed_run_as_died(tmp_path: Path) -> None:
    code = f"import ocrlab.run_folder as f; print(f.create({str(tmp_path)!r}, 'a').path, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        folder = Path(child.stdout.readline().strip())
        assert status(folder).status == "running"
        assert running_process(folder)["pid"] == child.pid
        child.kill()
    record = status(folder)
    assert record.status == "died"
    assert record.error is not None
    assert record.error["type"] == "died"
    assert newest(tmp_path, "died") == folder


def test_a_folder_without_a_sentinel_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run folder"):
        status(tmp_path)
    with pytest.raises(RunError, match="is not a run folder"):
        status(tmp_path / "absent")
    (tmp_path / "notes").mkdir()
    assert list_runs(tmp_path) == []
    assert list_runs(tmp_path / "absent") == []


def test_the_name_of_the_file_decides_and_the_final_sentinel_counts(tmp_path: Path) -> None:
    both = put(put(tmp_path / "both", ".RUNNING", {"status": "running"}), ".FAILURE", {"status": "running"})
    assert status(both).status == "failure"


@pytest.mark.parametrize("content", ["", "{", "[]", {"schema": 2, "status": "success"}, {"schema": "x"}])
def test_what_cannot_be_read_is_refused_alone_and_reported_in_a_list(tmp_path: Path, content: object) -> None:
    bad = put(tmp_path / "bad", ".SUCCESS", content)
    good = put(tmp_path / "good", ".SUCCESS", {"status": "success", "started": "2025-01-01T00:00:00+00:00"})
    with pytest.raises(DataError, match=r"\.SUCCESS"):
        status(bad)
    records = dict(list_runs(tmp_path))
    assert records[good].error is None
    error = records[bad].error
    assert error is not None
    assert error["type"] == "unreadable"


def test_values_of_the_wrong_type_do_not_get_in(tmp_path: Path) -> None:
    content = {"metrics": {"hmean@0.5": 0.9, "loss": None, "note": "x"}, "error": "text", "started": 5, "ended": 6}
    record = status(put(tmp_path / "odd", ".SUCCESS", content))
    assert record.metrics["hmean@0.5"] == 0.9
    assert math.isnan(record.metrics["loss"])
    assert set(record.metrics) == {"hmean@0.5", "loss"}
    assert (record.error, record.started, record.ended) == (None, "5", "6")


def test_newest_goes_by_the_start_and_by_the_status(tmp_path: Path) -> None:
    for name, sentinel, hour in (("a", ".SUCCESS", "09"), ("b", ".SUCCESS", "08"), ("c", ".FAILURE", "10")):
        put(tmp_path / name, sentinel, {"started": f"2025-01-01T{hour}:00:00+00:00"})
    assert newest(tmp_path) == tmp_path / "a"
    assert newest(tmp_path, "failure") == tmp_path / "c"
    assert newest(tmp_path, "running") is None
    assert [path.name for path, _ in list_runs(tmp_path)] == ["b", "a", "c"]
