"""How a notebook ended: outcome, result, marks in the file, limits."""

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from ocrlab.errors import DataError
from ocrlab.records import Reading
from ocrlab.reports.notebooks import executed_file, failure_marks, outcome, results, termination
from ocrlab.reports.notebooks.execution import Limits, Run
from ocrlab.reports.notebooks.jupyter_kernel import Kernel
from ocrlab.reports.notebooks.outcome import OUTCOMES, Judgement, Outcome, judged, view
from ocrlab.reports.notebooks.termination import Ending


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


@pytest.mark.parametrize(
    ("value", "word"),
    [(0.85, "PASS"), (0.99, "PASS"), (0.849, "WARN"), (0.7, "WARN"), (0.699, "FAIL"), (math.nan, "FAIL")],
)
def test_a_number_against_its_limits(value: float, word: str) -> None:
    judgement = Judgement("hmean@0.5", value, 0.85, 0.7)
    assert judgement.word == word
    assert "0.85" in judgement.sentence()
    assert judged("n", [judgement]).word == word


def test_some_limits_met_is_a_warning() -> None:
    good, bad = Judgement("a", 1, 0.5, 0.5), Judgement("b", 0, 0.5, 0.5)
    assert judged("n", [good, good]).word == "PASS"
    assert judged("n", [good, bad]).word == "WARN"
    assert judged("n", [bad, bad]).word == "FAIL"


def test_nothing_judged_stays_incomplete() -> None:
    assert judged("n", []).word == "INCOMPLETE"


@pytest.mark.parametrize("word", OUTCOMES)
def test_the_block_says_its_word_in_colour_sign_and_text(word: str) -> None:
    shown = view(Outcome("03_train", word, "A <b> sentence.", next="ocrlab train"))
    for part in (word, OUTCOMES[word].colour, OUTCOMES[word].sign, "A &lt;b&gt; sentence.", "ocrlab train", "03_train"):
        assert part in shown.html
    assert shown.text == f"03_train: {word}. A <b> sentence. Next: ocrlab train"


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    process = Kernel()
    yield process
    process.close()


def gone(kernel: Kernel, code: int | None) -> Kernel:
    kernel.process = SimpleNamespace(poll=lambda: code, pid=12345)
    return kernel


@pytest.mark.parametrize(("code", "word", "status", "part"), [
    (-11, "CRASHED", 139, "died of SIGSEGV in cell [3]; usually native code touched memory"),
    (-9, "CRASHED", 137, "died of SIGKILL in cell [3]; usually it was killed from outside"),
    (3, "FAIL", 3, "ended in cell [3] with exit status 3"),
    (0, "FAIL", 1, "ended in cell [3] with exit status 0"),
    (139, "CRASHED", 139, "died of SIGSEGV in cell [3]"),
    (None, "CRASHED", 1, "died in cell [3], cause unknown"),
])  # fmt: skip
def test_a_kernel_that_is_gone(kernel: Kernel, code: int | None, word: str, status: int, part: str) -> None:
    ended = termination.died(gone(kernel, code), 3, "")
    assert (ended.word, ended.exit_status, ended.cell) == (word, status, 3)
    assert part in ended.sentence
    assert ended.verdict is not None
    assert ended.verdict.signal == ended.signal


def test_a_neighbours_trouble_in_the_kernel_log_is_no_evidence(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["[1.0] Out of memory: Killed process 777 (python)", "[2.0] python[12345]: segfault at 0 ip 0 sp 0 error 4"]
    monkeypatch.setattr(termination.kernel_log, "lines", lambda _since: Reading("kernel_log", lines))
    ended = termination.died(gone(kernel, -11), 3, "")
    assert ended.texts["kernel_log.txt"] == lines[1]


def test_a_diagnosis_that_fails_costs_nothing_else(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    from ocrlab.debug.diagnosis import classify

    def broken(_incident: Any) -> None:
        raise RuntimeError("no catalogue")

    monkeypatch.setattr(classify, "classify", broken)
    ended = termination.died(gone(kernel, -6), 3, "")
    assert ended.word == "CRASHED"
    assert ended.verdict is not None
    assert ended.verdict.causes == []
    assert "no catalogue" in ended.verdict.missing[0]


def test_an_exception_and_a_stop() -> None:
    ended = termination.failed(
        4, "ValueError: \x1b[31mno\x1b[0m", "", "Traceback (most recent call last):\nValueError: no"
    )
    assert (ended.word, ended.exit_status, ended.sentence) == ("FAIL", 1, "It stopped in cell [4]. ValueError: no")
    assert termination.stopped(4, KeyboardInterrupt()).sentence.startswith("It was stopped by SIGINT in cell [4]")
    ended = termination.stopped(None, SystemExit(143))
    assert (ended.word, ended.exit_status) == ("INCOMPLETE", 143)
    assert "SIGTERM before its first cell" in ended.sentence


def test_a_cell_has_its_own_limit_or_what_is_left_of_the_notebooks() -> None:
    assert Limits(60, None).of_cell() == 60
    assert Limits(60, 10).of_cell() == pytest.approx(10, abs=1)
    assert Limits(5, 10).of_cell() == 5
    assert Limits(60, 0.0).of_cell() > 0, "nbclient takes 0 for no limit"
    assert Limits(5, None).broken(5.0) == (5, "a cell")
    assert Limits(5, 100).broken(5.0) == (5, "a cell")
    assert Limits(60, 0.0).broken(0.01) == (0.0, "the whole notebook")


def test_no_time_left_for_the_next_cell_is_not_the_last_cells_fault() -> None:
    manager: Any = SimpleNamespace(nb=SimpleNamespace(cells=[new_code_cell("1")]))
    kernel = Kernel()
    ended = Run(manager, None, kernel, Limits(60, 0.0)).execute_cells()
    kernel.close()
    assert ended is not None
    assert (ended.word, ended.exit_status, ended.cell) == ("STUCK", 124, None)
    assert "before its first cell" in ended.sentence


SECRET = "hunter2hunter2"


def executed_notebook() -> nbformat.NotebookNode:
    outputs = [
        new_output("stream", text=f"token {SECRET}\n"),
        new_output("display_data", data={"text/plain": SECRET, "image/png": SECRET}),
        new_output("error", ename="E", evalue=SECRET, traceback=[f"line {SECRET}"]),
    ]
    executed = new_notebook(cells=[new_code_cell(f"key = '{SECRET}'", outputs=outputs), new_code_cell("print(1)")])
    executed.metadata["papermill"] = {"parameters": {"wandb_api_key": "anything", "batch_size": 4}}
    return executed


def test_secrets_are_replaced_everywhere_but_in_pictures_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APP_TOKEN", SECRET)
    original = executed_notebook()
    clean, count = executed_file.redacted(original)
    text = nbformat.writes(clean)
    assert text.count(SECRET) == 1  # base64 has no names in it
    assert "(APP_TOKEN)" in text
    assert clean.metadata.papermill.parameters == {"wandb_api_key": "(secret)", "batch_size": 4}
    assert count == 6
    assert SECRET in original.cells[0].source  # what still runs must not be changed


def test_it_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.ipynb"
    executed_file.write(executed_notebook(), str(path))
    assert nbformat.read(str(path), as_version=4).cells[1].source == "print(1)"
    assert [file.name for file in tmp_path.iterdir()] == ["out.ipynb"]


def manager(cells: list[Any]) -> Any:
    notebook = new_notebook(cells=cells)
    notebook.metadata["papermill"] = nbformat.from_dict({"input_path": "a/mine.ipynb", "parameters": {"n": 3}})
    for cell in cells:
        cell.metadata["papermill"] = nbformat.from_dict({"status": "running"})

    def failed(cell: Any, **_: Any) -> None:
        cell.metadata.papermill.status = "failed"

    return SimpleNamespace(nb=notebook, cell_exception=failed, cell_complete=lambda cell, **_: None)


def setup_cell(**more: Any) -> Any:
    running = Outcome("ours", "INCOMPLETE", "It still runs.")
    bundle = results.bundle(results.build(running, metrics={}, parameters={"n": 3}))
    bundle[results.MIME] |= more
    data = {**outcome.view(running)._repr_mimebundle_(), **bundle}
    return new_code_cell("setup()", outputs=[new_output("display_data", data=data)], execution_count=1)


def test_the_notebooks_own_word_on_its_child_stays() -> None:
    cells = [setup_cell(outcome="CRASHED", ending={"exit_status": 137}), new_code_cell("lab.run()", execution_count=2)]
    cells[1].outputs = [new_output("error", ename="ChildFailed", evalue="x", traceback=["x"])]
    execution = manager(cells)
    failure_marks.mark(execution, Ending("failed", "It stopped in cell [2].", 1, 2), 1)
    result = results.from_bundle(execution.nb.cells[0].outputs[0].data)
    assert result is not None
    assert result.outcome == "CRASHED"
    assert (execution.nb.metadata.ocrlab["outcome"], execution.nb.metadata.ocrlab["exit_status"]) == ("CRASHED", 137)
    assert len(execution.nb.cells[1].outputs) == 1  # its own error is reported once


@pytest.mark.parametrize("index", [None, 0])
def test_a_stop_before_or_in_a_cell(index: int | None) -> None:
    execution = manager([new_code_cell("wait()", execution_count=1)])
    failure_marks.mark(execution, Ending("stopped", "It was stopped by SIGTERM.", 143, index), index)
    [*_, cell] = execution.nb.cells
    assert [output.ename for output in cell.outputs] == (["Stopped"] if index is not None else [])
    assert execution.nb.metadata.ocrlab["outcome"] == "INCOMPLETE"
