import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ocrlab import cli

PROGRAM = "import os, sys\nif '--workers=4' in sys.argv and os.environ.get('AMP') == '1': raise KeyError('bug')"


@pytest.fixture
def bisect(tmp_path, monkeypatch, capsys):
    """Return a function that runs `ocrlab bisect` in an empty folder: exit status, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        status = cli.main(["bisect", *words])
        output = capsys.readouterr()
        return status, output.out, output.err

    return run


def program(*flips: str) -> list[str]:
    words = [word for flip in flips for word in ("--factor", flip)]
    return [*words, "--timeout", "20", "--", sys.executable, "-S", "-c", PROGRAM, "--workers={workers}"]


def test_any_program_by_words_and_variables(bisect: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    status, out, err = bisect("--json", *program("workers=4:0", "AMP=1:0"))
    record = json.loads(out)
    assert status == 0
    assert (record["status"], record["kind"], record["culprits"]) == ("found", "all", ["workers", "AMP"])
    assert "at most 60" in err.splitlines()[1], "the number of runs is printed before the first"
    assert "run 1: failed" in err
    assert json.loads(Path(record["file"]).read_text())["sentence"] == record["sentence"]
    assert Path(record["file"]).is_relative_to(tmp_path / "runs")


def test_a_run_folder_keeps_every_record_and_makes_no_run_twice(bisect, tmp_path):
    assert cli.main(["watch", "--run-dir", "bad", "--", sys.executable, "-c", "raise KeyError('bug')"]) == 1
    first = bisect("--json", "bad", *program("workers=4:0", "AMP=1:1x"))
    second = bisect("--json", "bad", *program("workers=4:0", "AMP=1:1x"))
    assert (first[0], second[0]) == (0, 0)
    assert json.loads(first[1])["runs"]["used"] > 0
    assert json.loads(second[1])["runs"]["used"] == 0
    assert {path.name for path in (tmp_path / "bad" / "incident").glob("bisect*")} == {"bisect.json", "bisect-2.json"}
    assert (tmp_path / "bad" / "incident" / "verdict.json").exists()


def test_people_get_a_table_and_the_sentence_last(bisect: Callable[..., tuple[int, str, str]]) -> None:
    status, out, _ = bisect(*program("workers=4:0", "AMP=1:x"))
    lines = out.strip().splitlines()
    assert status == 0
    assert lines[0].split() == ["run", "workers", "AMP", "ended", "s", "failure"]
    assert "Until it is fixed" in lines[-2]


def test_the_same_command_goes_on_where_the_runs_were_spent(bisect: Callable[..., tuple[int, str, str]]) -> None:
    first = bisect("--json", "--runs", "2", *program("workers=4:0", "AMP=1:x"))
    second = bisect("--json", *program("workers=4:0", "AMP=1:x"))
    assert (first[0], second[0]) == (1, 0)
    assert json.loads(second[1])["runs"]["known_before"] == 2
    third = bisect("--json", *program("workers=4:0", "AMP=1:x"))
    assert json.loads(third[1])["runs"]["known_before"] <= 2, "what was found is looked for afresh"


def test_a_line_of_a_list_is_named_and_left_out(bisect: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("".join(f"{name}.jpg 1\n" for name in "abcdefgh").replace("f.jpg 1", "f.jpg"))
    code = "import sys; [line.split()[1] for line in open(sys.argv[1])]"
    status, out, err = bisect("--samples", "list=train.txt", "--", sys.executable, "-S", "-c", code, "{list}")
    assert status == 0
    assert "Caused by the line 6 (`f.jpg`): it fails without the others; all others pass" in out
    assert "Until it is fixed: leave out line 6." in out
    assert "8 lines are halved: up to 7 runs for one" in err
    assert err.count("ocrlab bisect: run ") <= 7
    assert out.splitlines()[0].split() == ["run", "lines", "ended", "s", "failure"]


def test_a_mended_file_is_run_again(bisect: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    code = "import sys; text = open(sys.argv[1]).read(); {}['b'] if 'b' in text else 0"
    words = ("--json", "bad", "--factor", "a=1:0", "--", sys.executable, "-S", "-c", code, "l.txt")
    (tmp_path / "l.txt").write_text("a\nb\n")
    assert cli.main(["watch", "--run-dir", "bad", "--", sys.executable, "-c", "{}['b']"]) == 1
    assert json.loads(bisect(*words)[1])["status"] == "none"
    (tmp_path / "l.txt").write_text("a\nccc\n")
    record = json.loads(bisect(*words)[1])
    assert (record["status"], record["runs"]["known_before"]) == ("never", 0)


@pytest.mark.parametrize("words, message", [
    ((), "Nothing to bisect"),
    (("nowhere",), "does not exist"),
    (("--", "python"), "No factors to bisect"),
    (("--factor", "a=1:0"), "needs a command to run"),
    (("--factor", "a=1", "--", "python"), "cannot be read"),
    (("--factor", "a=1:0", "--", "no_such_program"), "cannot be started"),
    (("--samples", "list=nowhere.txt", "--", "python", "{list}"), "no such file"),
    (("--samples", "list", "batch_size=2"), "needs a command to run"),
    (("--runs", "0", "batch_size=2"), "--runs"),
    (("--error", "0.7", "batch_size=2"), "--error"),
    (("--rate", "0", "batch_size=2"), "--rate"),
    (("--timeout", "-1", "batch_size=2"), "--timeout"),
    (("batch_size=2", "--factor", "a=1:0", "--", "python"), "Settings are only for ocrlab train"),
    (("batch_size=2", "--against", "batch_size=2"), "changes nothing"),
    (("no_such_key=2",), "no_such_key"),
])  # fmt: skip
def test_wrong_use_is_reported_before_anything_runs(bisect, words, message, tmp_path):
    status, _, err = bisect(*words)
    assert (status, message in err) == (2, True), err
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_is_no_run_of_ours(bisect: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    status, _, err = bisect("folder")
    assert status == 2
    assert "--factor NAME=BAD:GOOD" in err
