"""Run folders of watched programs: names, sentinels, and incidents that are never overwritten."""

from __future__ import annotations

import json

import pytest

from ocrlab import run_folder
from ocrlab.debug.watch import incident_folder
from ocrlab.errors import ConfigError, RunError


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "-u", "src/train.py", "--lr", "1"], "train"),
        (["python3.11", "-m", "pkg.train"], "train"),
        (["python", "-c", "import x"], "python"),
        (["torchrun", "--nproc-per-node=2", "fine tune.py"], "fine tune"),
        (["torchrun", "--nproc-per-node", "2", "my/train.py", "--lr", "1"], "train"),
        (["torchrun", "--nproc-per-node", "2", "-m", "pkg.train"], "train"),
        (["/usr/bin/sleep", "5"], "sleep"),
        (["bash", "run.sh"], "sh"),
    ],
)
def test_the_name_of_a_command(command, name):
    assert incident_folder.slug(command) == name


def test_a_finished_folder_is_used_again(tmp_path):
    incident_folder.open_folder(tmp_path, ["x"]).succeed({})
    incident_folder.open_folder(tmp_path, ["x"])
    assert run_folder.status(tmp_path).status == "running"
    assert (tmp_path / "flight" / "success-1.json").is_file()


def test_a_link_that_leads_nowhere_is_named_as_such(tmp_path):
    (tmp_path / "dead").symlink_to(tmp_path / "gone")
    with pytest.raises(RunError, match="a link that leads nowhere"):
        incident_folder.open_folder(tmp_path / "dead", ["true"])


def test_incidents_get_numbers(tmp_path):
    for text in "abc":
        (incident_folder.new_incident(tmp_path) / "verdict.json").write_text(text)
    verdicts = {path.parent.name: path.read_text() for path in tmp_path.glob("*/verdict.json")}
    assert verdicts == {"incident-1": "a", "incident-2": "b", "incident": "c"}


def test_the_run_folder_of_a_process(tmp_path):
    for name, pid in (("a", 5), ("b", 6)):
        (tmp_path / name / "flight").mkdir(parents=True)
        (tmp_path / name / "flight" / "process.json").write_text(json.dumps({"schema": 1, "pid": pid}))
    (tmp_path / "b" / "flight" / "process.json").with_name("process.json").touch()
    assert incident_folder.find_run_of(6, tmp_path) == tmp_path / "b"
    assert incident_folder.find_run_of(7, tmp_path) is None


def test_a_program_that_died_without_a_word_gets_its_sentinel(tmp_path):
    folder = run_folder.create(tmp_path, "x")
    (folder.flight / "process.json").write_text(json.dumps({"schema": 1, "pid": 2**22 + 1, "started": 1}))
    incident_folder.failed(folder.path, {"type": "Killed", "message": "SIGKILL", "pid": 2**22 + 1}, "host.oom_kill")
    record = run_folder.status(folder.path)
    assert (record.status, record.verdict, record.error["type"]) == ("failure", "host.oom_kill", "Killed")
    assert record.started == folder.started


def test_what_the_program_wrote_itself_stays_and_gets_the_cause(tmp_path):
    folder = run_folder.create(tmp_path, "x")
    folder.fail(ValueError("its own words"))
    incident_folder.failed(folder.path, {"type": "Failed", "message": "exit status 1"}, "user.shape")
    record = run_folder.status(folder.path)
    assert (record.error["message"], record.verdict) == ("its own words", "user.shape")


@pytest.mark.parametrize("name", [".SUCCESS", ".FAILURE", ".RUNNING"])
@pytest.mark.parametrize("text", ["", "done", "[1]", '{"schema": 1, "mine": true}'])
def test_a_sentinel_of_somebody_else_is_never_replaced(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match="was not written by ocrlab"):
        incident_folder.open_folder(tmp_path, ["x"])
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, text)]


def test_a_folder_incident_of_the_user_stays(tmp_path):
    (tmp_path / "incident").mkdir()
    (tmp_path / "incident" / "notes.txt").write_text("mine")
    incident_folder.open_folder(tmp_path, ["x"])
    assert (tmp_path / "incident" / "notes.txt").read_text() == "mine"
