"""The command around the commands: exit status, messages, one JSON object, signals."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from ocrlab import __version__
from ocrlab.cli import COMMANDS, WHICH, main
from ocrlab.errors import DataError


def test_help_begins_with_symptoms_and_groups_every_command(capsys):
    assert main(["--help"]) == 0
    stdout = capsys.readouterr().out
    assert all(f"\n  {name} " in stdout for name in COMMANDS)
    headings = ["which command?", "train and use:", "something failed:", "before you train:", "share:", "examples:"]
    places = [stdout.index(f"\n{heading}\n") for heading in headings]
    assert places == sorted(places)
    assert all(row[1].split()[0] in COMMANDS or row[1].startswith("check_step") for row in WHICH)
    assert main([]) == 0
    assert capsys.readouterr().out == stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(name, capsys):
    assert main([name, "--help"]) == 0
    stdout = capsys.readouterr().out
    words = [[name, word] for word in getattr(import_module(f"ocrlab.cli.{name}"), "WORDS", {})] or [[name]]
    assert f"examples:\n  ocrlab {name} " in stdout
    for command in words:
        assert main([*command, "--help"]) == 0
        stdout = capsys.readouterr().out
        assert "--json" in stdout
        assert stdout.partition("\nexamples:\n")[2].count(" ".join(["ocrlab", *command])) >= 3


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ocrlab {__version__}\n"


@pytest.mark.parametrize(("words", "message"), [
    (["trian"], "The nearest is ocrlab train"),
    (["train", "--batch_size", "4"], "--batch_size"),
    (["train", "--resum", "x"], "--resum"),
    (["train", "batch_size=0"], "from 1 to 65536"),
    (["samples", "male", "x"], "male"),
])  # fmt: skip
def test_wrong_use_is_2_and_a_single_message(words, message, capsys):
    assert main(words) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("ocrlab: ") and message in output.err
    assert "Traceback" not in output.err and len(output.err.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        "predict none.jpg", "evaluate --checkpoint none.ckpt data=none",
        "evaluate --predictions none data=none", "evaluate --oracle none", "train data=none",
        "train --config none.yaml", "train --resume none", "train weights=none.ckpt data=pages",
        "export onnx --checkpoint none.ckpt --out m.onnx", "samples check none", "samples show none",
        "samples convert none new --to coco", "runs none", "diagnose none.log",
        "diagnose --jsonl none.jsonl", "replay none", "bisect none", "memory fit data=none",
        "memory estimate data=none", "memory why none.log", "report bug none", "report html none.ipynb",
        "run none.ipynb", "kernel --ptxas none.log", "kernel --ncu none.csv",
    ],
)  # fmt: skip
def test_a_path_that_is_not_there_is_wrong_use_of_every_command(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pages").symlink_to(Path(__file__).parents[2] / "data_samples")
    assert main(words.split()) == 2
    stderr = capsys.readouterr().err
    assert stderr.startswith("ocrlab: ") and "none" in stderr and len(stderr.splitlines()) == 1


def test_wrong_use_with_json_is_a_single_object(capsys):
    assert main(["train", "batch_size=0", "--json"]) == 2
    output = capsys.readouterr()
    record = json.loads(output.out)
    assert (record["schema"], record["status"], record["exit_status"]) == (1, "failure", 2)
    assert record["error"]["type"] == "ConfigError"
    assert record["error"]["message"] in output.err


@pytest.mark.parametrize(("error", "status", "message"), [
    (DataError("The folder is empty"), 1, "ocrlab: The folder is empty."),
    (ZeroDivisionError("by zero"), 1, "ocrlab: ZeroDivisionError: by zero\n  at "),
    (KeyboardInterrupt(), 130, "ocrlab: stopped by SIGINT"),
    (SystemExit(143), 143, "ocrlab: stopped by SIGTERM"),
    (SystemExit("no more"), 1, "ocrlab: no more"),
    (SystemExit(1), 1, ""),
])  # fmt: skip
def test_failures_become_exit_status_and_message(error, status, message, calls, capsys, monkeypatch):
    def fail():
        raise error

    calls.noise = fail
    assert main(["train"]) == status
    output = capsys.readouterr()
    assert output.err.startswith(message) and "Traceback" not in output.err
    assert output.out == ""
    monkeypatch.setenv("OCRLAB_TRACEBACK", "1")
    assert main(["train", "--json"]) == status
    output = capsys.readouterr()
    assert "Traceback" in output.err
    assert json.loads(output.out)["exit_status"] == status


def test_json_is_alone_on_stdout_whatever_else_is_printed(calls, capfd):
    def noise():
        print("from python")
        os.write(1, b"from below\n")
        subprocess.run(["echo", "from a child"], check=True)

    calls.noise = noise
    assert main(["train", "--json"]) == 0
    output = capfd.readouterr()
    assert json.loads(output.out)["status"] == "success"
    assert output.out.count("\n") == 1
    for text in ("from python", "from below", "from a child", "a word from the run"):
        assert text in output.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_with_128_plus_its_number(number, calls, capsys):
    closed = []

    def wait():
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        finally:
            closed.append(True)

    calls.noise = wait
    before = signal.getsignal(number)
    assert main(["train"]) == 128 + number
    assert closed, "what was open is closed"
    assert signal.getsignal(number) is before
    assert signal.Signals(number).name in capsys.readouterr().err


def test_a_reader_that_went_away_is_no_traceback():
    command = f"{sys.executable} -m ocrlab train --keys --json | head -c 1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.parametrize(("words", "streams", "status", "message"), [
    ("runs .", ">&-", 0, ""),
    ("train --keys", ">&- 2>&- <&-", 0, ""),
    ("trian", "2>&-", 2, ""),
    ("trian --json", ">&-", 2, "ocrlab: 'trian' is not a command"),
    ("train --keys", ">/dev/full", 1, "ocrlab: stdout could not be written. Given: No space left on device."),
    ("--version", ">/dev/full", 1, "ocrlab: stdout could not be written. Given: No space left on device."),
])  # fmt: skip
def test_a_stdout_that_is_closed_or_full_is_no_traceback(words, streams, status, message, tmp_path):
    command = ["bash", "-c", f"{sys.executable} -m ocrlab {words} {streams}"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # argparse hides its errors
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=env)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert done.stderr.startswith(message) and len(done.stderr.splitlines()) == bool(message), done.stderr


@pytest.mark.parametrize("coding", ["utf-8:strict", "ascii:strict"])
@pytest.mark.parametrize("words", [["samples", "show"], ["samples", "show", "--json"], ["train", "--resume"]])
def test_a_name_of_any_bytes_is_no_traceback(words, coding, tmp_path):
    name = b"caf\xe9 \xf0\x9f\x98\x80\x1b[31m"
    samples = Path(__file__).parents[2] / "data_samples" / "val"
    shutil.copytree(samples, tmp_path / os.fsdecode(name) / "val")
    command = [sys.executable, "-m", "ocrlab", *words, *(["--split", "val"] if "show" in words else []), name]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, env=os.environ | {"PYTHONIOENCODING": coding})
    assert b"Traceback" not in done.stderr, done.stderr
    assert done.returncode == (0 if "show" in words else 1), done.stderr
    if "--json" in words:
        record = json.loads(done.stdout.decode(coding.partition(":")[0]))
        assert record["folder"] == os.fsdecode(name), "the name comes back as it is"
    if "--resume" in words:
        assert b"\x1b" not in done.stderr, "no stranger's name moves the cursor"


def test_nothing_is_guessed(capsys):
    for words in (["train", "--jso"], ["train", "--nonsense"]):
        assert main(words) == 2
        assert "train: unrecognized arguments" in capsys.readouterr().err
    assert main(["samples", "make", "x", "--jso"]) == 2
    assert "samples make: unrecognized arguments: --jso. The nearest is --json" in capsys.readouterr().err


@pytest.mark.parametrize("words", [
    ["predict", "page.jpg", "--out", "file"],
    ["predict", "page.jpg", "--out", ""],
    ["predict", "page.jpg", "--jsonl", ""],
    ["export", "onnx", "--out", "file"],
    ["export", "onnx", "--out", "file/model.onnx"],
    ["samples", "show", "data", "--out", "file.png"],
    ["samples", "show", "data", "--out", "file/sheet.png"],
    ["samples", "make", "file"],
    ["samples", "make", "new", "--train", "0", "--val", "0"],
])  # fmt: skip
def test_a_place_that_cannot_be_written_is_wrong_use(words, calls, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("page.jpg", "file", "file.png"):
        Path(name).write_text("mine")
    assert main(words) == 2
    stderr = capsys.readouterr().err
    assert stderr.count("ocrlab: ") == 1 and "  at " not in stderr
    assert calls.load is None, "before anything is loaded"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        ("page.jpg", "file", "file.png"), "mine"
    )
