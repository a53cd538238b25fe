"""The benchmarks start, take their whole path on a tiny input, and format what they measured."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ocrlab import redaction, run_folder
from ocrlab.config.schema import apply, load, save
from ocrlab.hardware.processes import process_tree
from ocrlab.reports.run_history import run_list

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"
PARTS = (
    "table",
    "runs",
    "step_sides",
    "planted",
    "street_doctr",
    "street_score",
    "db_peers",
    "metrics_peers",
    "worst_maps",
    "memory_fit",
    "memory_leaks",
    "memory_oom",
    "flight_kills",
    "flight_keeping",
    "flight_replays",
    "flight_bisect",
    "flight_cost",
    "flight_faults",
    "flight_pages",
    "flight_victim",
    "flight_detector",
    "flight_truth",
    "flight_buggy",
    "flight_cuda",
    "secret_forms",
)  # parts of benchmarks, not questions of their own
QUESTIONS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in PARTS)
MACHINE = {
    "schema": 1,
    "cpu_name": "A processor",
    "cores": 2,
    "cpu_flags": ["amx_bf16", "avx2", "avx_vnni"],
    "memory_bytes": 8 * 2**30,
    "python": "3.12.1",
    "packages": {"torch": "2.8.0"},
    "revision": "0123456789ab",
}


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that imports a file of benchmarks/ as its siblings do."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def imported(name: str) -> ModuleType:
        module = importlib.import_module(name)
        assert module.__file__ == str(FOLDER / f"{name}.py")
        return module

    return imported


def start(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a benchmark as a person would, whether or not the package is installed."""
    libraries = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(FOLDER / words[0]), *words[1:]]
    environment = os.environ | {"PYTHONPATH": libraries}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, env=environment, check=False)


def made_run(folder: Path, *settings: str, hmean: float = 0.94, minutes: float = 39.0, step: float = 0.5) -> Path:
    """Write a run folder as a finished training leaves it: losses, a validation after 9 minutes, one at the end."""
    with run_folder.run(folder, "made") as opened:
        config = apply(load(), ["data=somewhere", "trainer.accelerator=cpu", "runtime.threads=2", *settings])
        save(config, opened.config_file)
        run_folder.write_json(opened.environment_file, MACHINE)
        rows = run_folder.Table(opened.metrics_file)
        for i in range(1, 5):
            rows.write({"step": 25 * i, "loss": 4.0 / i, "step_seconds": step, "fit_seconds": 15 * minutes * i})
        early = {"hmean@0.5": 0.86, "hmean@0.7": 0.6, "hmean@0.8": 0.3, "pages": 63.0}
        rows.write({"step": 50, "fit_seconds": 540.0, "cpu_seconds": 1070.5, **early})
        final = {"hmean@0.5": hmean, "hmean@0.7": hmean - 0.1, "hmean@0.8": hmean - 0.3, "pages": 63.0}
        rows.write({"step": 100, **final})
        opened.succeed({**final, "fit_seconds": 60 * minutes, "steps": 100.0})
    return opened.path


@pytest.mark.slow
@pytest.mark.parametrize("name", QUESTIONS)
def test_help_shows_the_question(name: str) -> None:
    done = start(f"{name}.py", "--help")
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout and "?" in done.stdout


def test_every_question_is_listed_with_its_command() -> None:
    listed = re.findall(r"`python benchmarks/(\w+)\.py", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert set(QUESTIONS) <= set(listed)


@pytest.mark.slow
def test_a_step_is_timed_beside_busy_processes_and_none_is_left(part: Any) -> None:
    busy = part("busy")
    seconds = busy.steps((1, 64, 2), dict(os.environ), 1)
    assert 0 < seconds < 30
    assert not [one for one in process_tree.descendants(os.getpid()) if "while True: pass" in one.command]


def test_a_table_is_markdown_and_a_page_names_date_command_and_machine(
    part: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = part("table")
    assert table.markdown(("a", "long"), [("x|y", 1)]) == "| a    | long |\n|------|------|\n| x\\|y | 1    |"
    monkeypatch.setattr(sys, "argv", ["/far/away/step.py", "--peer", "official=/far/away/DB", f"--data={ROOT}/data"])
    page = table.page("Title", "body", environment=MACHINE, date="2025-01-31")
    machine = "A processor, 2 usable cores, instruction sets avx2 amx_bf16, 8 GiB, Python 3.12.1, torch 2.8.0"
    assert page.startswith("# Title\n\n2025-01-31, `python benchmarks/step.py --peer official=PATH --data=data`\n")
    assert f"Machine: {machine}, ocrlab 0123456789ab.\n\nbody\n" in page


def test_this_machine_can_be_named_and_a_page_is_kept_only_when_asked(
    part: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = part("table")
    monkeypatch.setattr(table, "RESULTS", tmp_path / "results")
    text = table.page("Title", "body")
    assert re.search(r"Machine: .+ usable cores, .+ load \d+\.\d before the start\.", text)
    assert table.publish("name", text, save=False) is None and not table.RESULTS.exists()
    path = table.publish("name", text, save=True, date="2025-01-31")
    assert path == tmp_path / "results" / "2025-01-31-name.md" and path.read_text(encoding="utf-8") == text
    more = [table.publish("name", n, save=True, date="2025-01-31").name for n in ("second", "third")]
    assert more == ["2025-01-31-name-2.md", "2025-01-31-name-3.md"] and path.read_text(encoding="utf-8") == text


@pytest.mark.slow
def test_step_takes_its_whole_path_and_says_what_it_could_not_measure(tmp_path: Path) -> None:
    done = start("step.py", "--smoke", "--peer", f"official={tmp_path}", "--peer", f"other={tmp_path}")
    assert done.returncode == 0, done.stderr
    for side in ("ours bf16", "ours fp32"):
        assert re.search(rf"\| {side} +\| \d\.\d{{3}} s .+\| 11\.\d M", done.stdout), done.stdout
    assert re.search(r"\| official +\| not measured: FileNotFoundError: .+no checkout", done.stdout)
    assert re.search(r"\| other +\| not measured: step_sides.py knows how to build official", done.stdout)
    assert "not judged, a side is missing" in done.stdout and str(tmp_path) not in done.stdout


@pytest.mark.parametrize(("flags", "size", "ours", "met"), [
    ({"amx_bf16"}, 640, 0.5, True),
    ({"amx_bf16"}, 640, 0.6, False),
    ({"avx512f"}, 640, 0.6, None),
    ({"amx_bf16"}, 64, 0.6, None),
])  # fmt: skip
def test_step_judges_bf16_only_where_the_cpu_has_amx(
    part: Any, monkeypatch: pytest.MonkeyPatch, flags: set[str], size: int, ours: float, met: bool | None
) -> None:
    step = part("step")
    monkeypatch.setattr(step.host, "cpu_flags", lambda: flags)
    about = {"memory": 2.5, "parameters": 12e6}
    sides = [step.Side(n, about, [w, w, w], [2 * w]) for n, w in (("ours bf16", ours), ("official", 2.0))]
    found, text = step.report([*sides, step.Side("ours fp32", fault="died with exit status -4")], size, 2)
    assert found is met
    assert f"Ours in bf16 / official: {ours / 2:.3f}" in text and "not measured: died with exit status -4" in text


def test_imports_judges_seconds_and_modules(part: Any) -> None:
    imports = part("imports")
    good, text = imports.report([0.13, 0.12, 0.4], [0.05, 0.06, 0.05], [0.07, 0.07, 0.3], [])
    assert good and "beyond a bare interpreter: 0.080 s; limit 0.1 s: met" in text
    assert not imports.report([0.2], [0.05], [0.15], [])[0]
    heavy, text = imports.report([0.06], [0.05], [0.01], ["torch"])
    assert not heavy and "it imports: torch; limit none: NOT met" in text


def test_receipts_reads_a_run_and_judges_it(part: Any, tmp_path: Path) -> None:
    receipts, runs = part("receipts"), part("runs")
    run = runs.read(made_run(tmp_path, "optim.lr=1e-3", "augment.scale=[0.5,2]", "trainer.precision=bf16"))
    met, text = receipts.report(run, "../shared/data/sroie")
    assert met
    command = "ocrlab train data=../shared/data/sroie augment.scale=[0.5,2.0] optim.lr=0.001"
    assert f"`{command}` (cpu, bf16, " in text
    assert re.search(r"\| 9\.0 +\| 50 +\| 1070 +\| 63 +\| 0\.8600 +\| 0\.6000 +\| 0\.3000 +\|", text), text
    assert re.search(r"\| 39\.0 +\| 100 +\| - +\| 63 +\| 0\.9400 +\| 0\.8400", text), text
    assert "on 63 val pages: 100 steps, 39.0 minutes" in text


@pytest.mark.parametrize("fault", [{"hmean": 0.92}, {"minutes": 40.5}])
def test_receipts_refuses_a_run_that_is_too_weak_or_too_long(
    part: Any, tmp_path: Path, fault: dict[str, float]
) -> None:
    run = part("runs").read(made_run(tmp_path, **fault))
    met, text = part("receipts").report(run, "receipts")
    assert not met and "NOT met" in text


def test_receipts_draws_the_same_svg_twice(part: Any, tmp_path: Path) -> None:
    run = part("runs").read(made_run(tmp_path))
    drawn = []
    for name in ("a.svg", "b.svg"):
        part("receipts").draw(run, tmp_path / name)
        drawn.append((tmp_path / name).read_text(encoding="utf-8"))
    assert drawn[0] == drawn[1] and "minutes of training" in drawn[0] and "hmean@0.8" in drawn[0]


def test_the_command_of_a_run_gives_its_config_again(part: Any, tmp_path: Path) -> None:
    runs = part("runs")
    path = made_run(tmp_path, "weights=imagenet", "trainer.max_minutes=5", "runtime.compile=true", "post.unclip=1.5")
    run = runs.read(path)
    words = runs.command(run, "somewhere").split()[2:]
    again = load(overrides=[*words, "trainer.accelerator=cpu", "runtime.threads=2"])
    assert again == run.config


def test_a_run_that_did_not_end_well_is_refused(part: Any, tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), run_folder.run(tmp_path, "bad") as folder:
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match="not a finished run"):
        part("runs").read(folder.path)


def test_decoders_gives_every_network_the_same_time(part: Any, tmp_path: Path) -> None:
    decoders, runs = part("decoders"), part("runs")
    fast, slow = (runs.read(made_run(tmp_path, hmean=h, step=s)) for h, s in ((0.9, 0.25), (0.8, 1.0)))
    assert decoders.steps_in(4, fast) == 960 and decoders.steps_in(4, slow) == 240
    text = decoders.report([("resnet18+unet", slow), ("resnet18+fpn", fast)])
    assert text.endswith("Best for the time: resnet18+fpn.") and text.index("| resnet18+fpn") < text.index(
        "| resnet18+unet"
    )


def test_precision_puts_both_curves_side_by_side(part: Any, tmp_path: Path) -> None:
    half, full = (part("runs").read(made_run(tmp_path, hmean=h)) for h in (0.891, 0.9))
    text = part("precision").report(half, full)
    assert re.search(r"\| 25 +\| 4\.0000 +\| 4\.0000 +\| \+0\.0 %", text)
    assert re.search(r"\| hmean@0\.5 +\| 0\.8910 +\| 0\.9000 +\| -1\.0 %", text)


def test_a_training_is_started_with_the_settings_and_read_back(
    part: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs, folder = part("runs"), made_run(tmp_path)
    seen: list[list[str]] = []

    def pretended(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        seen.append(command)
        code, told = (1, "no data") if "data=absent" in command else (0, json.dumps({"run": str(folder)}))
        return subprocess.CompletedProcess(command, code, told)

    monkeypatch.setattr(runs.subprocess, "run", pretended)
    assert runs.train(["data=here", "seed=1"]).folder == folder
    assert seen[0][1:] == ["-m", "ocrlab", "train", "data=here", "seed=1", "--json"]
    with pytest.raises(RuntimeError, match="exit status 1: no data"):
        runs.train(["data=absent"])


def test_audit_plants_the_same_by_seed_and_knows_where(part: Any, tmp_path: Path) -> None:
    planted = part("planted")
    pages, same, other = (planted.read(ROOT / "data_samples" / "val") for _ in range(3))
    untouched = {page.name: [(box.bounds, box.text) for box in page.boxes] for page in pages}
    defects = planted.plant(pages, 3, 1)
    planted.write(pages, tmp_path / "val")
    written = {page.name: page.boxes for page in planted.read(tmp_path / "val")}
    assert [one.kind for one in defects].count("missing") == 3 and len(defects) == 15
    for one in defects:
        boxes = [written[one.page.name][line - 1] for line in sorted(one.lines)]
        assert sorted((box.corners.tolist(), box.text) for box in boxes) == sorted(
            (box.corners.tolist(), box.text) for box in one.boxes
        )
        assert len(boxes) == {"missing": 0, "swapped": 2, "duplicated": 2}.get(one.kind, 1)
        if one.kind in ("shifted", "swapped"):
            assert not {(box.bounds, box.text) for box in boxes} & set(untouched[one.page.name])
    words = [(one.kind, one.page.name, one.lines, one.grade) for one in defects]
    assert words == [(one.kind, one.page.name, one.lines, one.grade) for one in planted.plant(same, 3, 1)]
    assert words != [(one.kind, one.page.name, one.lines, one.grade) for one in planted.plant(other, 3, 2)]


def test_audit_counts_only_what_names_the_place(part: Any) -> None:
    audit, planted = part("audit"), part("planted")
    pages = planted.read(ROOT / "data_samples" / "val")
    for one in planted.plant(pages, 3, 0):
        name, kind = one.page.name, {"duplicated": "duplicate_box"}.get(one.kind, one.kind)
        kind = {"shifted": "misplaced", "missing": "missing_box"}.get(kind, kind)
        line, far = min(one.lines, default=None), (one.place + 2000).tolist()
        place = one.place.tolist()
        told = audit.Finding(kind, name, "val", line, place, "warn", "")
        assert audit.found(one, [told])
        others = [replace(told, page="another"), replace(told, kind="exif"), replace(told, box=9999, polygon=far)]
        whole = [[0, 0], [9000, 0], [9000, 9000], [0, 9000]]
        others += [replace(told, polygon=whole)] if line is None else [replace(told, box=None)]
        assert not audit.found(one, others)
        assert not audit.told([replace(told, severity="note")])
        if len(one.lines) == 2:
            assert audit.found(one, [replace(told, box=9999, other=f"{name}:{line}")])


def test_audit_counts_alarms_about_boxes(part: Any) -> None:
    audit = part("audit")
    box, lost = (audit.Finding(k, "p", "val", b, None, "warn", "") for k, b in (("narrow", 3), ("missing_box", None)))
    page = audit.Finding("exif", "p", "val", None, None, "warn", "")
    assert audit.quiet([box, lost, page, page], 400, 2, 1.0)[0]
    met, text = audit.quiet([box, lost, box, page], 400, 2, 1.0)
    assert not met and "3 of 400 boxes, 0.75%; limit 0.5%: NOT met" in text


def test_street_splits_by_name_and_copies_once(part: Any, tmp_path: Path) -> None:
    street = part("street")
    for folder in ("images", "gts"):
        (tmp_path / "dev" / folder).mkdir(parents=True)
    for i in range(110):
        (tmp_path / "dev" / "images" / f"{i}.jpg").touch()
        (tmp_path / "dev" / "gts" / f"gt_{i}.txt").touch()
    place = street.divided(tmp_path / "dev", tmp_path / "out")
    names = {split: {f.stem for f in (place / split / "images").iterdir()} for split in ("train", "tune", "test")}
    assert {split: len(found) for split, found in names.items()} == {"train": 50, "tune": 40, "test": 60}
    assert names["tune"] < names["train"] and not names["test"] & names["train"]
    assert street.divided(tmp_path / "dev", tmp_path / "out") == place


def test_street_counts_what_is_ahead_and_by_how_much(part: Any) -> None:
    import numpy as np

    score = part("street_score")
    pages = np.array([[3, 4, 4], [0, 2, 0], [5, 5, 6]])
    assert float(score.hmean(pages)) == pytest.approx(2 * 8 / (11 + 10))
    worse = pages - [[1, 0, 0], [0, 0, 0], [2, 0, 0]]
    *cells, low = score.compared([np.stack([pages] * 3), np.stack([worse] * 3)])
    assert cells[0].startswith("0.7619 [") and cells[2].startswith("+0.2857 [") and low <= 0.2857
    assert score.compared([pages, None])[:3] == (cells[0], "not measured", "not measured")
    assert float(score.hmean(np.zeros((2, 3), np.int64))) == 0


def test_robustness_moves_boxes_with_the_page_and_judges_the_drop(part: Any) -> None:
    import numpy as np

    robustness = part("robustness")
    image = np.full((101, 201, 3), 255, np.uint8)
    image[40:61, 50:151] = 0
    box = np.array([[50, 40], [150, 40], [150, 60], [50, 60]], np.float32)
    for name, change in robustness.CHANGES.items():
        changed, [moved] = change(np.random.default_rng(0), image, [box])
        assert changed.dtype == np.uint8 and changed.flags.c_contiguous, name
        x, y = np.rint(moved.mean(axis=0)).astype(int)
        assert changed[y, x].max() < 100 <= changed[3, changed.shape[1] // 2].max() or "light" in name, name
    turned, [moved] = robustness.turned(np.random.default_rng(0), image, [box])
    assert moved[1][1] > moved[0][1] and turned.shape[0] > 101 and turned.shape[1] > 201
    figures = {"clean": {"hmean@0.5": 0.9, "hmean@0.7": 0.8}, "a": {"hmean@0.5": 0.81, "hmean@0.7": 0.5}}
    assert robustness.report(figures)[0] is True
    figures["b"] = {"hmean@0.5": 0.7, "hmean@0.7": 0.5}
    met, text = robustness.report(figures)
    assert met is False and "Worst: b, +0.2000 hmean@0.5, NOT met." in text


def test_many_runs_are_made_and_listed(part: Any, tmp_path: Path) -> None:
    many = part("many_runs")
    folder, empty = tmp_path / "runs", tmp_path / "empty"
    empty.mkdir()
    many.make(folder, 12)
    listed = run_list.list_runs([folder])
    assert {run.status for run in listed} == {"success", "failed", "died", "broken"}
    assert all(len(run.settings) > 60 for run in listed)
    met, body = many.measure(folder, empty, 1)
    assert "12 runs in" in body
    assert ("NOT met" in body) != met


@pytest.mark.parametrize("seed", [1, 20261124])
def test_forms_of_secrets_are_hidden_and_innocent_texts_stay(
    part: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    forms, seen = part("secret_forms"), part("shared_secrets").seen
    every = forms.forms(seed)
    for name, value in (pair for form in every for pair in form.variables):
        monkeypatch.setenv(name, value)
    assert [form.name for form in every if not seen(form, form.shown)] == []
    assert [form.name for form in every if seen(form, redaction.clean(form.shown))] == []
    assert [text for text in forms.INNOCENT if redaction.clean(text) != text] == []
