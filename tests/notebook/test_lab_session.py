"""A lab from setup to finish, without a kernel: what is displayed is caught where IPython would take it."""

import faulthandler
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import IPython.display
import pytest

from ocrlab.debug.watch.supervisor import Ended
from ocrlab.errors import ConfigError
from ocrlab.notebook import child_runner, setup
from ocrlab.notebook import lab_session as labs
from ocrlab.reports.notebooks import results

CELL = 'name: str = "03_train"\ndata: str = ""\nbatch_size: int = 4\nruns: str = ""'
Shown = dict[str, dict[str, Any]]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Return what is on the screen: the last bundle of each display id."""
    screen: Shown = {}

    def display(bundle: dict[str, Any], *, raw: bool, display_id: str, update: bool) -> None:
        assert raw
        assert update is (display_id in screen)
        screen[display_id] = bundle

    monkeypatch.setattr(IPython.display, "display", display)
    return screen


@pytest.fixture
def namespace(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Return the globals of a notebook whose parameters cell ran; pytest gets its own crash handler back afterwards."""
    yield {"In": ["", CELL, "lab = notebook.setup(globals())"], "name": "03_train", "data": "", "runs": str(runs)}
    faulthandler.unregister(signal.SIGUSR1)
    faulthandler.disable()
    monkeypatch.undo()
    labs._open.clear()


def outcomes(shown: Shown) -> list[str]:
    words = re.compile(r'class="word"[^>]*>([A-Z]+)<')
    return [match[1] for bundle in shown.values() if (match := words.search(bundle["text/html"]))]


def trained(folder: Path) -> SimpleNamespace:
    """Return what `fit` would, with a checkpoint of six bytes."""
    (folder / "checkpoints").mkdir(parents=True)
    checkpoint = folder / "checkpoints" / "best.ckpt"
    checkpoint.write_bytes(b"weight")
    return SimpleNamespace(folder=folder, status="success", metrics={"hmean@0.5": 0.9}, checkpoint=checkpoint)


def test_incomplete_until_it_is_finished(shown, namespace, capsys):
    lab = setup(namespace)
    assert outcomes(shown) == ["INCOMPLETE"]
    top = next(iter(shown.values()))
    assert top[results.MIME]["outcome"] == "INCOMPLETE"
    lab.outcome("hmean@0.5", 0.9, limit=0.85, warn=0.7)
    assert outcomes(shown) == ["INCOMPLETE"]
    lab.finish()
    assert outcomes(shown) == ["PASS"]
    assert next(iter(shown.values()))[results.MIME]["outcome"] == "PASS"
    assert capsys.readouterr().out == "03_train: PASS\n"


@pytest.mark.parametrize(("value", "word"), [(0.9, "PASS"), (0.75, "WARN"), (0.3, "FAIL"), (float("nan"), "FAIL")])
def test_the_last_line_has_stable_words(value, word, shown, namespace, capsys):
    lab = setup(namespace)
    lab.outcome("hmean@0.5", value, limit=0.85, warn=0.7)
    lab.finish()
    assert capsys.readouterr().out == f"03_train: {word}\n"


def test_nothing_judged_is_never_green(shown: Shown, namespace: dict[str, Any]) -> None:
    setup(namespace).finish()
    assert outcomes(shown) == ["INCOMPLETE"]


def test_the_result_is_stored_in_the_notebook_and_in_the_run_folder(shown, namespace, runs):
    lab = setup(namespace)
    lab.training = trained(runs / "x")
    lab.outcome("hmean@0.5", 0.9, limit=0.85, warn=0.7)
    lab.finish()
    stored = results.load(runs / "x")
    top = next(iter(shown.values()))
    written = json.loads((runs / "x" / "report.json").read_text())
    assert written == {**json.loads(json.dumps(top[results.MIME])), "redacted": written["redacted"]}
    assert stored.artefacts[0]["file"] == "best.ckpt"
    assert stored.parameters["batch_size"] == 4
    assert stored.metrics["hmean@0.5"]["limit"] == 0.85
    assert "ocrlab predict --checkpoint" in top["text/html"]


def test_refused_parameters_are_shown_at_the_top_and_raised(shown: Shown, namespace: dict[str, Any]) -> None:
    namespace |= {"batch_size": "eight"}
    with pytest.raises(ConfigError, match="batch_size='eight' cannot be used"):
        setup(namespace)
    assert outcomes(shown) == ["INCOMPLETE"]
    assert "batch_size=" in next(iter(shown.values()))["text/html"]


def test_a_secret_among_the_parameters_is_refused_and_not_shown(shown: Shown, namespace: dict[str, Any]) -> None:
    namespace["In"].insert(2, '# Parameters\nwandb_api_key = "hunter2hunter2"')
    with pytest.raises(ConfigError, match="wandb_api_key looks like a secret"):
        setup(namespace)
    assert "hunter2" not in str(shown)


def test_what_stopped_it_is_shown_at_the_top(shown: Shown, namespace: dict[str, Any]) -> None:
    lab = setup(namespace)
    error = ZeroDivisionError("division <by> zero\nmore")
    lab.after_cell(SimpleNamespace(error_before_exec=None, error_in_exec=error, execution_count=5))
    html = next(iter(shown.values()))["text/html"]
    assert outcomes(shown) == ["INCOMPLETE"]
    assert "It stopped in cell [5]. ZeroDivisionError: division &lt;by&gt; zero" in html
    assert next(iter(shown.values()))[results.MIME]["outcome"] == "INCOMPLETE"


def test_a_training_that_was_stopped_says_how_to_go_on(shown: Shown, namespace: dict[str, Any], runs: Path) -> None:
    lab = setup(namespace)
    stopped = child_runner.Stopped(Ended("failed", 130, None, None, runs / "x", 130))
    result = SimpleNamespace(error_before_exec=None, error_in_exec=stopped, execution_count=18)
    lab.after_cell(result)
    top = next(iter(shown.values()))
    assert "Stopped by you in cell [18]." in top["text/plain"]
    assert "--resume" not in top["text/plain"]  # there is nothing to go on from
    (runs / "x" / "checkpoints").mkdir(parents=True)
    (runs / "x" / "checkpoints" / "last.ckpt").write_bytes(b"weight")
    lab.after_cell(result)
    top = next(iter(shown.values()))
    assert "Stopped by you in cell [18]; the last checkpoint is saved." in top["text/plain"]
    assert re.search(r"Next: ocrlab train --resume \S+/x$", top["text/plain"])
    assert outcomes(shown) == ["INCOMPLETE"]


def test_a_first_cell_that_runs_again_keeps_a_single_file_open(shown, namespace, runs):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        setup(namespace)
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    signal.raise_signal(signal.SIGUSR1)
    [file] = (runs / ".stacks").glob("03_train-*.txt")
    assert "test_a_first_cell_that_runs_again" in file.read_text(encoding="utf-8")


def test_a_function_runs_in_a_child_and_in_the_kernel_when_asked(shown: Shown, namespace: dict[str, Any]) -> None:
    lab = setup(namespace)
    assert lab.run(os.getpid) != os.getpid()
    assert lab.run(os.getpid, in_process=True) == os.getpid()


def test_training_runs_in_a_child_with_its_events(shown, namespace, runs, monkeypatch):
    lab = setup(namespace)
    asked: dict[str, Any] = {}

    def call(function: Any, args: Any, kwargs: Any, options: Any, events: Any) -> dict[str, Any]:
        asked.update(name=function.__name__, config=args[0], own_folder=options.own_folder)
        events({"kind": "train", "step": 3, "total": 7, "loss": 2.5})
        return {"folder": runs / "x", "status": "success", "metrics": {"hmean@0.5": 0.9}, "checkpoint": None}

    monkeypatch.setattr(child_runner, "call", call)
    run = lab.run(limit=0.85)
    assert asked == {"name": "train", "config": lab.config, "own_folder": True}
    assert (lab.training, run.metrics["hmean@0.5"]) == (run, 0.9)
    lab.after_cell(SimpleNamespace(error_before_exec=None, error_in_exec=None, execution_count=5))
    assert "3 of 7" in str(shown)


def test_a_child_that_dies_is_a_crash_of_the_notebook(shown: Shown, namespace: dict[str, Any]) -> None:
    lab = setup(namespace)
    monkeypatched: list[Any] = []
    with pytest.MonkeyPatch.context() as patch, pytest.raises(child_runner.ChildFailed) as caught:
        patch.setattr(IPython.display, "display", monkeypatched.append)
        lab.run(os.abort)
    lab.after_cell(SimpleNamespace(error_before_exec=None, error_in_exec=caught.value, execution_count=5))
    top = next(iter(shown.values()))
    assert outcomes(shown) == ["CRASHED"]
    assert "It stopped in cell [5]. The child died of SIGABRT" in top["text/html"]
    assert "native.abort" in top["text/html"]
    ending = top[results.MIME]["ending"]
    assert (ending["cell"], ending["signal"], ending["exit_status"]) == (5, "SIGABRT", 134)
