"""`ocrlab memory`: fit, estimate, why and watch; their words and wrong use."""

import json
import os
import subprocess
import sys

import pytest

from ocrlab.cli import main, memory_fit, memory_watch, memory_why
from ocrlab.cli.parser import Answer, Parser
from ocrlab.cli.streams_and_signals import outputs_to_stderr
from ocrlab.data.synthetic import generate
from ocrlab.debug.memory.fit_trials import MemoryTrial
from ocrlab.debug.memory.largest_batch import Fit
from ocrlab.debug.memory.memory_limit import Limit
from ocrlab.errors import ConfigError

MIB = 1 << 20
LIMIT = Limit(1000 * MIB, "resident", "--limit", True)


def fitted(batch: int, proven: str, **more: object) -> Fit:
    tries = [
        MemoryTrial(4, True, 800 * MIB, "train", "", 1.0, 3.5),
        MemoryTrial(5, False, 950 * MIB, "train", "ended", 1.0),
    ]
    return Fit(batch, 800 * MIB, LIMIT, 950 * MIB, ["batch_size=4"], 48, proven, tries, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("words", "message"), [
    (["--limit", "-2"], "--limit"),
    (["--margin", "1"], "--margin"),
    (["--minutes", "0"], "--minutes"),
    (["croop=3"], "crop"),
    (["trainer.accelerator=cpu", "--limit", "0"], "--limit"),
])  # fmt: skip
def test_wrong_words_are_refused_before_anything_is_started(words, message, capsys):
    assert main(["memory", "fit", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("proven", "message"), [("batch + 1 fails", "5 does not fit"), ("close", "close"), ("most", "48"), ("time", "time")]
)
def test_the_sentence_says_why_there_is_nothing_larger(proven: str, message: str) -> None:
    result = fitted(4, proven)
    assert message in memory_fit.sentence(result)
    assert "800 MiB of 1,000 MiB" in memory_fit.sentence(result)
    assert memory_fit.record(result)["status"] == "fits"
    assert "batch_size=4" in memory_fit.text(result)


@pytest.mark.parametrize("proven", ["time", "slow", "unverified", "not measured"])
def test_what_was_not_measured_is_not_called_nothing_fits(proven: str) -> None:
    assert memory_fit.record(fitted(0, proven))["status"] == "not measured"
    assert memory_fit.sentence(fitted(0, proven)).startswith("Not measured")
    assert "othing fits" not in memory_fit.text(fitted(0, proven))


@pytest.mark.slow
def test_a_real_fit_leaves_nothing_behind(tmp_path) -> None:
    generate.make(tmp_path / "pages", train=3, val=1)
    words = ["crop=64", "width=16", "evaluate.long_side=128", "trainer.accelerator=cpu", "trainer.precision=fp32"]
    words += ["runtime.channels_last=true", "runtime.workers=0", "runtime.threads=1", f"data={tmp_path / 'pages'}"]
    code = "import sys; from ocrlab import cli; cli.COMMANDS.setdefault('memory', 'memory'); sys.exit(cli.main())"
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(
        [
            sys.executable, "-c", code, "memory", "fit", *words, "batch_size=3", "--limit", "1.2",
            "--minutes", "2", "--json",
        ],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["batch"] > 3, "three pages, and crops of them again"
    assert record["settings"] == [f"batch_size={record['batch']}", "trainer.accumulate_grad_batches=1"]
    assert not (tmp_path / "runs").exists()
    assert not [left for left in (tmp_path / "tmp").iterdir() if left.name.startswith("ocrlab-")]


def asked(*words: str) -> Answer:
    parser = Parser("ocrlab memory why", "why", memory_why.EXAMPLES)
    memory_why.arguments(parser)
    return memory_why.run(parser.parse_args(list(words)))


def test_a_log_is_answered_with_seven_rows_and_a_sentence(tmp_path) -> None:
    log = tmp_path / "train.log"
    log.write_text("DefaultCPUAllocator: can't allocate memory: you tried to allocate 21474836480 bytes.\n")
    done = asked(str(log))
    lines = done.text.splitlines()
    assert [line[0] for line in lines[:7]] == list("1234567")
    assert "20.00 GiB" in lines[0]
    assert lines[-1].startswith("It ran out of memory")
    assert done.status == 0
    assert done.record["kind"] == "refused by the host"
    assert json.loads(json.dumps(done.record))["schema"] == 1


def test_no_memory_failure_ends_with_status_1(tmp_path) -> None:
    log = tmp_path / "train.log"
    log.write_text("KeyError: 'x'\n")
    assert asked(str(log)).status == 1


def watched(*words: str) -> Answer:
    parser = Parser("ocrlab memory watch", "watch", memory_watch.EXAMPLES)
    memory_watch.arguments(parser)
    return memory_watch.run(parser.parse_args(list(words)))


def test_a_process_in_lines_and_as_a_block(capfd: pytest.CaptureFixture[str]) -> None:
    done = watched(str(os.getpid()), "--seconds", "0.1", "--count", "3")
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "host" in lines[0]
    assert f"({os.getpid()})" in done.text
    assert done.record["host"]["rss"] > 0
    assert done.record["growth"]["host"]["points"] == 3


def test_json_lines_reach_the_stdout_reserved_for_answers(capfd: pytest.CaptureFixture[str]) -> None:
    with outputs_to_stderr(True):
        print("somebody else")
        done = watched(str(os.getpid()), "--seconds", "0.1", "--count", "3", "--json")
    out = capfd.readouterr().out
    records = [json.loads(line) for line in out.splitlines()]
    assert len(records) == 2
    assert {record["pid"] for record in [*records, done.record]} == {os.getpid()}


def test_it_ends_with_its_process(tmp_path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)"])
    done = watched(str(child.pid), "--seconds", "0.1")
    assert done.record["pid"] == child.pid
    child.wait()
    with pytest.raises(ConfigError, match="no process"):
        watched(str(child.pid))


def test_the_whole_machine_where_no_run_lives(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    done = watched("--count", "1")
    assert "the whole machine" in done.text
    assert done.record["host"]["total"] > done.record["host"]["available"] > 0


@pytest.mark.parametrize("words", [("--seconds", "0"), ("--count", "0")])
def test_wrong_use_of_watch(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        watched(*words)
