"""The notebooks as a user runs them: papermill, from another folder, with good and with bad parameters."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from papermill.exceptions import PapermillExecutionError

from ocrlab import run_folder
from ocrlab.config import schema as configs
from ocrlab.inference import pretrained
from ocrlab.reports.html import document
from ocrlab.reports.notebooks import results


def of(number: str) -> pytest.MarkDecorator:
    """Name the notebook that a test is about."""
    return pytest.mark.parametrize("notebook", [number], indirect=True)


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """Return a Python without any package."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    path.chmod(0o755)
    return str(path)


@of("00")
@pytest.mark.slow
def test_another_python_without_torch_fails_with_the_command_that_fixes_it(execute, bare, finished):
    _, html = finished(execute(python=bare), "FAIL", 300_000)
    assert "10 of 10" in html
    assert f"{bare} -m pip install torch" in html
    assert "TORCH_USE_CUDA_DSA" in html


@of("00")
@pytest.mark.slow
def test_the_kernels_own_python_passes(execute) -> None:
    pytest.importorskip("torch")
    assert results.load(execute()).outcome == "PASS"


@of("01")
@pytest.mark.slow
@pytest.mark.parametrize(("values", "outcome", "words"), [
    ({}, "PASS", ["contract of a step", "bf16 against fp32", "one page overfitted"]),
    # unclip 6 makes every polygon too large, so that also what was learned by heart is not found
    ({"crop": 64, "overrides": ["width=16", "post.unclip=6", "runtime.threads=1"]}, "FAIL", ["do not agree"]),
])  # fmt: skip
def test_every_check_is_reported(execute, finished, values, outcome, words):
    _, html = finished(execute(batch_size=1, **values), outcome, 400_000)
    assert all(text in html for text in ["round trip of polygons", *words])


TINY = {"batch_size": 1, "crop": 64, "followed": 1, "workers": 0, "overrides": ["width=16"]}


@of("02")
@pytest.mark.slow
def test_it_accounts_for_the_memory_from_any_folder(execute, finished) -> None:
    _, html = finished(execute(**TINY), "PASS")
    for part in ("encoder.layer4", "activations", "high-water mark"):
        assert part in html


SMALL = {"max_steps": 2, "batch_size": 1, "crop": 64, "width": 16, "threads": 1, "accelerator": "cpu"}
FAST = ["runtime.channels_last=true", "evaluate.long_side=96", "trainer.val_pages=1"]


@of("03")
@pytest.mark.slow
def test_it_runs_from_any_folder_and_reports_how_it_ended(execute, tmp_path: Path, finished) -> None:
    result, html = finished(execute(**SMALL, precision="fp32", overrides=FAST), "FAIL")  # two steps teach nothing
    assert result.metrics["hmean@0.5"]["limit"] == 0.85
    assert result.metrics["pages"]["value"] == 16
    assert result.parameters["max_steps"] == 2
    [run] = [folder for folder in (tmp_path / "runs").iterdir() if (folder / ".SUCCESS").exists()]
    assert results.load(run) == result
    assert result.artefacts[0]["file"].startswith("best-")
    assert not list((tmp_path / "runs" / ".stacks").iterdir())  # nothing crashed
    assert "2 of 2" in html
    assert len(re.findall(r"<svg", html)) <= len(re.findall(r"aria-(label|hidden)=", html))


@of("03")
def test_bad_parameters_stop_it_at_once_with_everything_that_is_wrong(execute, tmp_path, cells, html_of):
    with pytest.raises(PapermillExecutionError) as caught:
        execute(batch_size="eight", limit=7, max_stepps=3, wandb_api_key="hunter2hunter2")
    message = str(caught.value)
    for part in (
        "batch_size='eight' cannot be used. Needed: a whole number",
        "limit=7 cannot be used",
        "Unknown parameter: max_stepps. Did you mean max_steps?",
        "wandb_api_key looks like a secret",
    ):
        assert part in message
    assert "hunter2" not in message
    path = Path("out.ipynb")
    assert "INCOMPLETE" in html_of(path)
    assert [bool(cell["outputs"]) for cell in cells(path)[4:]] == [False] * len(cells(path)[4:])  # no cell after it ran
    assert not (tmp_path / "runs").exists()


@of("03")
def test_stopped_in_the_middle_it_stays_incomplete(execute, tmp_path: Path, html_of) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(PapermillExecutionError, match="DataError"):
        execute(data=str(tmp_path / "empty"))
    result = results.load(Path("out.ipynb"))
    assert result.outcome == "INCOMPLETE"
    assert re.search(r"It stopped in cell \[\d+\]. DataError", html_of(Path("out.ipynb")))


@of("04")
@pytest.mark.slow
def test_it_runs_from_any_folder_and_locates_what_it_planted(execute, finished) -> None:
    _, html = finished(execute(max_steps=2, batch_size=2, crop=64), "PASS", 2_000_000)
    assert "2 of 2 planted faults are located" in html and "Every map of decoder.fusion" in html


@of("04")
@pytest.mark.slow
def test_a_wrong_module_is_refused_with_the_nearest_name(execute) -> None:
    with pytest.raises(PapermillExecutionError, match="decoder.fusion"):
        execute(module="decoder.fussion")
    assert results.load(Path("out.ipynb")).outcome != "PASS"


LOADER = {"batch_size": 1, "crop": 64, "width": 16, "threads": 1, "accelerator": "cpu", "precision": "fp32"}
# What is faster on a machine that tests other things meanwhile is not the question.
QUICK = {"channels_last": True, "workers_tried": [0, 1], "seconds": 0.2, "limit": 0.1}


@of("05")
@pytest.mark.slow
def test_it_runs_from_any_folder_and_recommends_what_it_measured(execute, finished) -> None:
    _, html = finished(execute(**LOADER, **QUICK), "PASS")
    assert re.search(r"ocrlab train runtime.workers=[01] runtime.threads=1", html)
    assert "receipt" in html


@of("06")
@pytest.mark.slow
def test_a_planted_fault_is_caught_and_named(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(notebook.parents[1]))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    command = [sys.executable, "-m", "ocrlab", "run", str(notebook), "-p", "runs", "runs", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["outcome"] == "PASS"
    result = results.load(tmp_path / answer["notebook"])
    assert (result.name, result.outcome, result.ending) == ("06_crash", "PASS", None)
    [run] = [path for path in (tmp_path / "runs").iterdir() if not path.name.startswith(".")]
    verdict = json.loads((run / "incident" / "verdict.json").read_text(encoding="utf-8"))
    assert verdict["causes"][0]["id"] == "native.segv"
    html = (tmp_path / answer["html"]).read_text(encoding="utf-8")
    assert "The cause that was planted is the cause that was named" in html
    assert not re.search(r'(src|href)="(?!data:|#)', html)
    assert len(html) < 150_000


@of("07")
@pytest.mark.slow
def test_the_same_detector_twice_is_a_warning_and_not_a_winner(execute, root, tmp_path, finished):
    folders = []
    for rate in (0.001, 0.002):
        words = [f"data={root / 'data_samples'}", f"optim.lr={rate}"]
        run = run_folder.create(tmp_path / "runs", f"r{rate:g}", configs.dump(configs.load(overrides=words)))
        shutil.copy(pretrained.find(), run.checkpoints / "best-x.ckpt")
        run.succeed({"hmean@0.5": 0.9})
        folders.append(str(run.path))
    result, html = finished(execute(compared=folders, pages=6), "WARN")
    assert result.metrics["share of draws in which B is ahead of A"]["value"] == 0.5
    assert "One setting differs: optim.lr" in html
    assert "cannot tell on 6 pages" in html
    assert "0 pages better, 0 worse, 6 the same" in html


@of("07")
@pytest.mark.slow
def test_runs_that_are_not_there_stop_it_in_words(execute, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(PapermillExecutionError, match="child failed"):
        execute(compared=[str(tmp_path / "empty")])
    assert "There are not two runs to compare" in Path("out.ipynb").read_text(encoding="utf-8")


@of("08")
@pytest.mark.slow
def test_it_runs_from_any_folder_and_its_report_shows_the_static_side(execute, tmp_path, cells, finished):
    path = execute(page=3)
    finished(path, "PASS", 1_500_000)
    bundles = [output["data"] for cell in cells(path) for output in cell["outputs"] if "data" in output]
    live = [bundle for bundle in bundles if "application/vnd.jupyter.widget-view+json" in bundle]
    assert len(live) == 1 and "receipt_003" in "".join(live[0]["text/html"])
    document.write(path, tmp_path / "report.html")
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert report.count("<image ") == 3 and "Threshold map" in report
    assert "widget-view" not in report and not re.search(r'(src|href)="(?!data:|#)', report)
    assert len(report) < 800_000
    assert not list((tmp_path / "runs").glob("2*"))  # the child left in peace, when its kernel did


@of("08")
@pytest.mark.slow
@pytest.mark.parametrize(("values", "words"), [
    ({"checkpoint": "nowhere.ckpt"}, "There is no checkpoint"),
    ({"checkpoint": "newest"}, "no successful run"),
    ({"val_split": "tests"}, "tests"),
    ({"page": -1}, "at least 0"),
])  # fmt: skip
def test_a_wrong_parameter_gets_a_single_sentence(execute, values, words: str, cells) -> None:
    with pytest.raises(PapermillExecutionError, match=words):
        execute(**values)
    [error] = [
        output for cell in cells(Path("out.ipynb")) for output in cell["outputs"] if output["output_type"] == "error"
    ]
    assert len("\n".join(error["traceback"]).splitlines()) == 1
    if "page" not in values:  # which is refused before there is a result
        assert results.load(Path("out.ipynb")).outcome == "INCOMPLETE"
