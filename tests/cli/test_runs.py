"""`ocrlab runs` as it is typed, and a table that fits every terminal."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ocrlab import cli, run_folder
from ocrlab.cli import runs_table
from ocrlab.config import schema as configs
from ocrlab.reports.run_history import query
from ocrlab.reports.run_history.fingerprint import fingerprint
from ocrlab.reports.run_history.run_list import Run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for number, rate in enumerate((0.001, 0.002, 0.002, 0.004)):
        run = run_folder.create("runs", f"r{number}", configs.dump(configs.load(overrides=[f"optim.lr={rate}"])))
        if number % 2 == 0:
            run.succeed({"hmean@0.5": 0.5 + number / 10, "seconds": 60.0 + number})
        else:
            run.fail(ValueError(f"page {number}"))
    return tmp_path / "runs"


def asked(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> Any:
    assert cli.main(["runs", *words, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def names(record: dict[str, Any]) -> list[str]:
    return [run["name"].rpartition("-")[2] for run in record["runs"]]


def test_a_single_object_with_runs_differences_and_failures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = asked(capsys)
    assert names(record) == ["r3", "r2", "r1", "r0"]
    assert (record["schema"], record["total"], record["matching"]) == (1, 4, 4)
    assert record["usual"] == {"optim.lr": 0.002}
    assert [run["settings"] for run in record["runs"]] == [{"optim.lr": rate} for rate in (0.004, 0.002, 0.002, 0.001)]
    [group] = record["failures"]
    assert (group["count"], group["runs"]) == (2, [record["runs"][0]["run"], record["runs"][2]["run"]])
    assert group["first"] < group["last"]
    good = record["runs"][1]
    assert (good["status"], good["hmean"], good["seconds"], good["cause"]) == ("success", 0.7, 62.0, None)


@pytest.mark.parametrize(("words", "left"), [
    (["--status", "failure"], "r3 r1"),
    (["--status", "success", "--sort", "hmean", "--reverse"], "r0 r2"),
    (["lr=0.002"], "r2 r1"),
    (["runs", "lr>=0.002", "--status", "failed"], "r3 r1"),
    (["--name", "r2"], "r2"),
    (["--since", "1h", "--limit", "2"], "r3 r2"),
    (["--since", "2100-01-01"], ""),
    (["--sort", "lr", "--limit", "1"], "r3"),
    (["--cause", "valueerror"], "r3 r1"),
])  # fmt: skip
def test_filters(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], left: str) -> None:
    assert names(asked(capsys, *words)) == left.split()


def test_runs_can_be_named_singly_and_by_fingerprint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = sorted(str(path) for path in folder.iterdir())
    assert names(asked(capsys, *paths[:2])) == ["r1", "r0"]
    name = asked(capsys)["failures"][0]["fingerprint"]
    assert names(asked(capsys, "--failure", name[:6])) == ["r3", "r1"]


@pytest.mark.parametrize(("words", "message"), [
    (["nowhere"], "There is no folder nowhere"),
    (["lr"], "must be quoted: 'lr>0.5'"),
    (["x.ipynb"], "To execute it: ocrlab run x.ipynb"),
    (["lrr=3"], "Did you mean"),
    (["--status", "succes"], "Did you mean success?"),
    (["--limit", "-1"], "-1 cannot be used"),
    (["--since", "noon"], "--since cannot be read"),
    (["--sort", "nothing"], "None of these runs has nothing"),
    (["--bogus"], "--bogus"),
])  # fmt: skip
def test_mistakes_get_a_sentence(folder, capsys, words, message):
    assert cli.main(["runs", *words]) == 2
    assert message in capsys.readouterr().err


def test_without_any_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["runs"]) == 2
    assert "Train first with ocrlab train" in capsys.readouterr().err
    assert cli.main(["runs", "."]) == 0
    assert "There are no runs here" in capsys.readouterr().out


def test_it_needs_no_package_and_says_what_brings_the_settings(folder: Path) -> None:
    blocked = ("yaml", "pydantic", "numpy", "torch", "rich", "pandas")
    code = f"import sys; sys.modules.update(dict.fromkeys({blocked})); from ocrlab import cli; sys.exit(cli.main())"
    done = subprocess.run([sys.executable, "-c", code, "runs"], cwd=folder.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = done.stdout.split("\n\n")[0].splitlines()
    assert len(rows) == 5
    assert done.stderr == "ocrlab runs: no settings: they need a YAML parser (pip install pyyaml)\n"


WORSE = fingerprint({"type": "KeyError", "message": "x", "your_code": "train.py:3 read_every_page_of_the_split"})


def run(name: str, **more: object) -> Run:
    first = Run(f"runs/{name}", name, "success", "2026-11-01T10:00:00+00:00", None, 61.0, {"hmean@0.5": 0.5}, True)
    return replace(first, **more)  # type: ignore[arg-type]


RUNS = [
    run("20261101-100000-a", settings={"optim.lr": 0.1, "encoder": "resnet18", "seed": 1}),
    run("20261101-100001-b", settings={"optim.lr": 0.1, "encoder": "resnet50", "seed": 2}),
    run("20261101-100002-c", settings={"optim.lr": 0.2, "encoder": "resnet18", "seed": 3}, final=False),
    run("20261101-100003-d", status="failed", failure=WORSE, why=WORSE.title, metrics={}, seconds=None),
    run("20261101-100004-" + "e" * 90, status="killed", seconds=3 * 3600 + 62.9),
]


def page(width: int | None, runs: list[Run] = RUNS) -> str:
    return runs_table.page(runs, runs, runs, query.group_failures(runs), width)


@pytest.mark.parametrize("width", [40, 60, 80, 119, 120, 160, 300])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = page(width).splitlines()
    assert max(map(len, lines)) <= width
    assert not any(line != line.rstrip() for line in lines)


def test_what_stands_in_it() -> None:
    text = page(160)
    assert "0.5000" in text
    assert "(0.5000)" in text  # not final
    assert "3:01:02" in text
    assert "1:01" in text
    assert "most have: lr=0.1 encoder=resnet18\n" in text  # each seed is another one: none is usual
    assert "seed=2 encoder=resnet50" in text or "encoder=resnet50 seed=2" in text
    assert re.search(rf"{WORSE.id} +1  2026-11-01", text)
    assert text.endswith("5 runs: 3 success, 1 failed, 1 killed")
    assert "e…e" in text or "e" * 90 in text


def test_control_characters_of_a_stranger_are_not_printed() -> None:
    evil = run("20261101-\x1b[2J\x07", why="a\tb\nc\x9b31m", settings={"data": "\x1b]0;x", "seed": 9})
    for width in (80, None):
        text = page(width, [*RUNS, evil])
        assert not {"\x1b", "\x07", "\x9b"} & set(text)
