"""Results: the same data in the notebook and as a file, readable again, without what is private."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from ocrlab.errors import DataError
from ocrlab.reports.notebooks import results
from ocrlab.reports.notebooks.outcome import Judgement, judged


@pytest.fixture
def result(tmp_path: Path) -> results.Result:
    file = tmp_path / "best.ckpt"
    file.write_bytes(b"weights")
    judged_outcome = judged("03_train", [Judgement("hmean@0.5", 0.9, 0.85, 0.7)])
    metrics = {"hmean@0.5": 0.9, "precision@0.5": float("nan")}
    parameters = {"data": "https://me:secret@host/x", "batch_size": 4, "shape": (1, 2)}
    return results.build(
        judged_outcome, metrics=metrics, parameters=parameters, artefacts=[file, tmp_path / "gone"], seconds=12.0
    )


def notebook(tmp_path: Path, *bundles: dict[str, Any]) -> Path:
    outputs = [{"output_type": "display_data", "data": {"text/html": "x", **b}, "metadata": {}} for b in bundles]
    cells = [{"cell_type": "markdown", "source": "x"}, {"cell_type": "code", "source": "", "outputs": outputs}]
    path = tmp_path / "out.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), encoding="utf-8")
    return path


def test_a_result_holds_what_a_comparison_needs(result: results.Result) -> None:
    assert (result.name, result.outcome, result.seconds) == ("03_train", "PASS", 12.0)
    assert result.metrics["hmean@0.5"] == {"value": 0.9, "unit": "", "limit": 0.85, "warn": 0.7}
    assert result.metrics["precision@0.5"]["limit"] is None
    [artefact] = result.artefacts
    assert artefact["bytes"] == 7
    assert artefact["sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert result.parameters["data"] == "https://(secret)@host/x"
    assert "ocrlab" in result.code
    assert "cores" in result.environment
    assert set(result.environment["packages"]) <= set(results.PACKAGES)


def test_the_bundle_is_json_with_a_schema(result: results.Result) -> None:
    bundle = results.bundle(result)
    content = bundle["application/vnd.ocrlab.result+json"]
    assert content["schema"] == 1
    assert content["metrics"]["precision@0.5"]["value"] is None  # JSON has no NaN
    assert json.loads(json.dumps(bundle, allow_nan=False)) == bundle


def test_notebook_file_and_folder_read_the_same(result: results.Result, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    written = results.save(result, run)
    executed = notebook(tmp_path, results.bundle(result))
    assert written.name == "report.json"
    loaded = results.load(written)
    assert loaded == results.load(run) == results.load(executed)
    assert loaded.outcome == "PASS"
    assert results.load(results.copy_beside(executed)) == loaded


def test_the_last_result_of_a_notebook_counts(result: results.Result, tmp_path: Path) -> None:
    old = {results.MIME: {"schema": 1, "name": "03_train", "outcome": "INCOMPLETE", "sentence": ""}}
    assert results.load(notebook(tmp_path, old, results.bundle(result))).outcome == "PASS"
    assert results.load(notebook(tmp_path, old)).outcome == "INCOMPLETE"


def test_what_holds_no_result_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="contains no result"):
        results.load(notebook(tmp_path))
    with pytest.raises(DataError, match="cannot be read"):
        results.load(tmp_path / "missing.ipynb")
    newer = tmp_path / "new.json"
    newer.write_text('{"schema": 2, "name": "x", "outcome": "PASS"}', encoding="utf-8")
    with pytest.raises(DataError, match="newer ocrlab"):
        results.load(newer)
    broken = tmp_path / "broken.ipynb"
    broken.write_text("[1, 2]", encoding="utf-8")
    with pytest.raises(DataError, match="not a notebook"):
        results.load(broken)
    other = tmp_path / "other.json"
    other.write_text('{"schema": 1}', encoding="utf-8")
    with pytest.raises(DataError, match="contains no result"):
        results.load(other)
