"""`ocrlab diagnose` on logs, many reports, and what it knows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ocrlab.cli import diagnose
from ocrlab.cli.parser import Answer, Parser
from ocrlab.debug.diagnosis import catalogue
from ocrlab.debug.flight_record import ring_format, ring_writer, training_findings
from ocrlab.errors import ConfigError
from ocrlab.run_folder import write_json
from ocrlab.run_folder.owner_process import identity

LOG = "Traceback (most recent call last):\nOSError: [Errno 24] Too many open files: 'x'\n"


def ask(*words: str) -> Answer:
    parser = Parser("ocrlab diagnose", "x", diagnose.EXAMPLES)
    diagnose.arguments(parser)
    return diagnose.run(parser.parse_args(words))


def test_a_log_becomes_a_verdict(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(LOG)
    answer = ask(str(tmp_path / "a.log"), "--json")
    assert answer.record["schema"] == 1
    assert answer.record["status"] == "log"
    assert answer.record["causes"][0]["id"] == "host.fd_limit"
    assert answer.record["causes"][0]["evidence"] == [{"file": "a.log", "line": 2, "text": LOG.splitlines()[1]}]
    assert "## Fix" in answer.text
    assert answer.status == 0


def test_what_a_recorded_training_noticed_is_reported_without_any_log(tmp_path: Path) -> None:
    (tmp_path / "flight").mkdir()
    training_findings.write(tmp_path / "flight", 0, 1, ["the learning rate was 0"], {}, cut=False)
    answer = ask(str(tmp_path))
    assert answer.text == "What the flight record noticed:\n\n- the learning rate was 0"
    assert answer.record["learned"] == ["the learning rate was 0"]
    assert answer.record["causes"] == []
    (tmp_path / "train.log").write_text(LOG)
    assert "learning rate was 0" in (both := ask(str(tmp_path)).text) and "Too many open files" in both
    training_findings.write(tmp_path / "flight", 0, 1, [], {}, cut=False)
    (tmp_path / "train.log").unlink()
    assert "nothing wrong" in ask(str(tmp_path)).text


def recorded(run: Path, pid: int) -> Path:
    (run / "flight").mkdir(parents=True)
    writer, _ = ring_writer.create(run / "flight", slots=4)
    writer.begin(ring_format.Step(22, 22, samples=[str(Path.home() / "pages" / "page_003.png"), "page_017.png"]))
    writer.phase("backward")
    writer.page[16:20] = pid.to_bytes(4, "little")
    return run


def test_where_the_record_of_a_killed_run_ends_is_reported_and_decides_no_cause(tmp_path: Path) -> None:
    gone = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, check=True)
    run = recorded(tmp_path / "run", int(gone.stdout))
    sentence = "ecord ends at step 22, backward; samples ~/pages/page_003.png, page_017.png"
    alone = ask(str(run))
    assert f"The r{sentence}." in alone.text and alone.record["record"] == f"the r{sentence}", "redacted as any path"
    assert alone.record["causes"] == []
    write_json(run / ".FAILURE", {"schema": 1, "status": "failure", "error": {"type": "Killed", "message": "x"}})
    killed = ask(str(run))
    assert "cause is unknown" in killed.text and f"The r{sentence}." in killed.text
    assert killed.record["causes"] == []
    (run / "incident").mkdir()
    write_json(run / "incident" / "replay.json", {"schema": 1, "answer": "first fault at step 22.", "fault": {}})
    placed = ask(str(run))
    assert "\n\nReplay: first fault at step 22.\n" in placed.text
    assert placed.record["replay"] == "first fault at step 22."
    (run / "incident" / "replay.json").unlink()
    (run / ".FAILURE").unlink()
    write_json(run / ".SUCCESS", {"schema": 1, "status": "success"})
    assert "record" not in ask(str(run)).record


@pytest.mark.parametrize("words", [(), ("a.log", "--jsonl", "b"), ("a.log", "--explain")])
def test_a_single_source_at_a_time(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="one of"):
        ask(*words)


def test_explaining_a_cause_and_listing_all() -> None:
    assert "compute-sanitizer" in ask("--explain", "kernel.illegal_address").text
    assert len(ask("--explain").record["causes"]) == len(catalogue.load().entries)
    with pytest.raises(ConfigError):
        ask("--explain", "no.such")


def test_many_reports_give_a_verdict_a_line_and_no_bad_line_stops_it(tmp_path: Path) -> None:
    rows = [json.dumps({"id": "a", "log": LOG}), "{broken", "[]", json.dumps({"id": 7, "log": "x", "context": "y"}), ""]
    rows += [
        json.dumps({"id": "no log"}), json.dumps({"id": "b", "log": 5}),
        json.dumps({"log": "MemoryError"}), "\xff",
    ]  # fmt: skip
    (tmp_path / "r.jsonl").write_bytes("\n".join(rows).encode("latin-1"))
    command = [sys.executable, "-m", "ocrlab", "diagnose", "--jsonl", str(tmp_path / "r.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, "lines are lost"
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert [verdict["id"] for verdict in verdicts] == ["a", None, None, 7, "no log", "b", None, None]
    assert [bool(verdict["causes"]) for verdict in verdicts] == [True, False, False, False, False, False, True, False]
    assert all(verdict["schema"] == 1 for verdict in verdicts)
    assert all("not a report" in verdicts[at]["missing"][0] for at in (1, 2, 4, 5))
    assert "line 2" in verdicts[1]["missing"][0]
    assert ask("--jsonl", str(tmp_path / "r.jsonl"), "--json").record["verdicts"] == verdicts


def test_a_run_that_has_not_ended_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "flight").mkdir()
    (tmp_path / ".RUNNING").write_text('{"schema": 1, "status": "running", "started": "x"}')
    write_json(tmp_path / "flight" / "process.json", identity())
    living = ask(str(tmp_path)).text
    assert living.startswith("This run has not ended (process ") and living.endswith(
        "so far nothing says that it fails."
    )
    write_json(tmp_path / "flight" / "process.json", {**identity(), "started": 1})
    assert "is gone without a last word" in ask(str(tmp_path)).text
    (tmp_path / "train.log").write_text("MemoryError")
    assert "host.alloc_fail" in ask(str(tmp_path)).text


def test_a_run_that_ended_well_is_not_an_unknown_failure(tmp_path):
    write_json(tmp_path / ".SUCCESS", {"schema": 1, "status": "success"})
    assert ask(str(tmp_path)).text == "This run has ended well; nothing in it indicates a failure."
    (tmp_path / "train.log").write_text("epoch 1 loss 0.5\nepoch 2 loss 0.4\n")
    assert ask(str(tmp_path)).text == "This run has ended well; nothing in it indicates a failure."
