"""The real wandb, offline and against a stand-in server (conftest.py) that is well or as broken as servers are."""

import base64
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ocrlab.config.schema import Tracking
from ocrlab.hardware.processes import process_tree
from ocrlab.inference.pretrained import sha256
from ocrlab.training.tracking import client
from tests.training.test_loop import interrupted, pages  # noqa: F401  # a fixture

KEY = "0123456789abcdef0123456789abcdef01234567"
HOME = f"{Path.home()}/"


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_") and name[6:] not in ("BASE_URL", "API_KEY")]:
        monkeypatch.delenv(name)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run" / "flight").mkdir(parents=True)
    return tmp_path / "run"


def begin(run: Path, mode: str = "online", deadline: float = 60, step: int = 0) -> client.Tracker:
    settings = Tracking(mode=mode, user="me", project="lab", deadline=deadline)  # type: ignore[arg-type]
    return client.start(settings, "first", run, {"batch_size": 4, "data": "/srv/private/sroie"}, step)


def test_online_a_run_arrives_whole_and_is_resumed(server: Any, run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tracker = begin(run)
    for step in (1, 2, 3):
        tracker.log({"loss": 1 / step}, step)
    tracker.finish("failed")  # as at SIGTERM
    [(name, stored)] = server.runs.items()
    assert (stored["displayName"], stored["exit"]) == ("first", 1)
    assert sorted(stored["tags"]) == ["status:failed"]

    best = run / "flight" / "best.ckpt"
    best.write_bytes(os.urandom(100_000))
    tracker = begin(run, step=2)
    for step in (3, 4, 5):  # its checkpoint was of step 2: the third is done again
        tracker.log({"loss": 1 / step}, step)
    tracker.artifact(best, sha256(best), {"hmean@0.5": 0.9})
    tracker.finish("completed", "last_0.9000", {"hmean@0.5": 0.9})
    assert capfd.readouterr().err == ""
    assert list(server.runs) == [name]
    assert [line["_step"] for _, line in sorted(stored["history"].items())] == [1, 2, 3, 4, 5]
    assert (stored["displayName"], stored["exit"], stored["inserted"]) == ("last_0.9000", 0, 1)
    assert sorted(stored["tags"]) == ["status:completed"]
    assert stored["summary"]["hmean@0.5"] == 0.9
    [artifact] = server.artifacts.values()
    assert artifact["committed"]
    assert artifact["files"]["best.ckpt"] == best.read_bytes()
    text = artifact["files"]["wandb_manifest.json"].decode()
    assert base64.b64encode(hashlib.md5(best.read_bytes()).digest()).decode() in text
    assert sha256(best) in artifact["said"]["metadata"]

    assert server.keys == {KEY}
    assert leaks(server, run) == []
    files = [file for file in run.rglob("*") if file.is_file()]
    assert len(files) > 8
    assert not [file for file in files if KEY.encode() in file.read_bytes()]


def test_offline_it_is_all_in_the_run_folder_and_can_be_sent_later(server, run, capfd):
    tracker = begin(run, "offline")
    assert tracker.child is not None
    assert KEY not in Path(f"/proc/{tracker.child.pid}/cmdline").read_text()
    tracker.log({"val/hmean": 0.5}, 10)
    best = run / "flight" / "best.ckpt"
    best.write_bytes(b"weights")
    tracker.artifact(best, sha256(best), {})
    tracker.finish("completed", "me_resnet18-fpn_0.9300")
    assert capfd.readouterr().err == ""
    assert server.asked == []
    [record] = (run / "wandb").glob("offline-run-*/*.wandb")
    stored = record.read_bytes()
    for text in (b"me_resnet18-fpn_0.9300", b"sroie", b"status:completed", b"val/hmean"):
        assert text in stored
    assert b"/srv/private" not in stored

    assert send(record.parent) == 0
    [sent_run] = server.runs.values()
    expected = ("me_resnet18-fpn_0.9300", [10])
    assert (sent_run["displayName"], [line["_step"] for line in sent_run["history"].values()]) == expected
    assert [artifact["files"]["best.ckpt"] for artifact in server.artifacts.values()] == [b"weights"]
    assert leaks(server, run) == []


def leaks(server: Any, run: Path) -> list[tuple[str, bytes]]:
    """Return what is private and came to the server, with the text around it."""
    private = ("/srv/private", KEY, str(run), *([HOME] if len(HOME) > 2 else []))
    leaked = [(secret, body, body.find(secret.encode())) for secret in private for body in server.received()]
    return [(secret, body[max(0, at - 200) : at + 200]) for secret, body, at in leaked if at >= 0]


def send(*folders: Path) -> int:
    """Send parts of a run as the warning says: from the run folder."""
    run, names = folders[0].parents[1], [str(folder.relative_to(folder.parents[1])) for folder in folders]
    command = [sys.executable, "-m", "wandb", "sync", *names]
    return subprocess.run(command, cwd=run, check=False, timeout=120, capture_output=True).returncode


def trouble(server: Any, run: Path, what: str, deadline: float) -> tuple[client.Tracker, float, float]:
    """Log 40 steps to a server in trouble; return the tracker, the slowest call but one, and the seconds of `finish`.

    One call may meet a machine that stands still for a moment; the next ones would wait for the server as well.
    """
    server.trouble = what
    tracker, calls = begin(run, deadline=deadline), []
    for step in range(1, 41):
        before = time.perf_counter()
        tracker.log({"loss": 1 / step}, step)
        calls.append(time.perf_counter() - before)
        time.sleep(0.01)
    before = time.perf_counter()
    tracker.finish("completed", "last_0.9000")
    assert max(calls) < 20
    return tracker, sorted(calls)[-2], time.perf_counter() - before


@pytest.mark.slow
@pytest.mark.parametrize("what", ["hang", "error", "garbage"])
def test_a_server_in_trouble_costs_a_line_and_the_run_stays(server, run, capfd, what):
    _, slowest, waited = trouble(server, run, what, deadline=45)
    stderr = capfd.readouterr().err
    assert slowest < 0.1
    assert waited < 46
    assert stderr.count("\n") == 1
    assert "continues offline" in stderr
    [record] = (run / "wandb").glob("offline-run-*/*.wandb")
    assert b"last_0.9000" in record.read_bytes()
    server.trouble = None
    assert send(record.parent) == 0  # the pattern that the line names
    command = f"cd {os.path.relpath(run)} && wandb sync wandb/offline-run-*-{client.run_id(run)}"
    assert stderr.strip().endswith(command)
    [stored] = server.runs.values()
    assert sorted(line["_step"] for line in stored["history"].values()) == list(range(1, 41))


@pytest.mark.slow
def test_a_slow_server_is_waited_for_at_the_end_only(server: Any, run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, slowest, _ = trouble(server, run, "slow", deadline=60)
    assert slowest < 0.1
    assert capfd.readouterr().err == ""
    [stored] = server.runs.values()
    assert (len(stored["history"]), stored["displayName"], stored["exit"]) == (40, "last_0.9000", 0)


@pytest.mark.slow
def test_a_server_that_dies_midway_costs_the_deadline_and_the_run_can_be_sent(server, run, capfd, monkeypatch):
    tracker = begin(run, deadline=20)
    tracker.log({"loss": 1.0}, 1)
    end = time.monotonic() + 60
    while not (server.runs and next(iter(server.runs.values()))["history"]) and time.monotonic() < end:
        tracker.log({"loss": 1.0}, 2)
        time.sleep(0.1)
    server.die()
    for step in (3, 4, 5):
        tracker.log({"loss": 1 / step}, step)
    assert tracker.child is not None
    family = [process.pid for process in process_tree.descendants(tracker.child.pid)]
    assert len(family) > 1  # wandb's own process too
    before = time.perf_counter()
    tracker.finish("completed", "last_0.9000")
    assert time.perf_counter() - before < 22
    stderr = capfd.readouterr().err
    assert stderr.count("\n") == 1
    assert "not finished after 20 s" in stderr
    assert [child.state for pid in family if (child := process_tree.read_process(pid)) and child.state != "Z"] == []
    another = type(server)()
    monkeypatch.setenv("WANDB_BASE_URL", another.url)
    command = stderr.partition("send it later: ")[2].partition(";")[0]  # as it is printed, word for word
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(command, shell=True, check=True, timeout=120, capture_output=True, env=os.environ | {"PATH": path})
    [stored] = another.runs.values()
    assert sorted(line["_step"] for line in stored["history"].values()) == [1, 2, 3, 4, 5]
    another.die()


@pytest.mark.slow
def test_offline_parts_of_a_resumed_run_are_joined(server: Any, run: Path) -> None:
    for steps in ((1, 2, 3), (3, 4, 5)):
        tracker = begin(run, "offline", step=steps[0] - 1)
        for step in steps:
            tracker.log({"loss": 1 / step}, step)
        tracker.finish("failed" if steps[0] == 1 else "completed", "last_0.9000")
        time.sleep(1.1)  # wandb names its folders by the second
    parts = sorted((run / "wandb").glob(f"offline-run-*-{client.run_id(run)}"))
    assert len(parts) == 2
    assert send(*parts) == 0
    [stored] = server.runs.values()
    assert sorted({line["_step"] for line in stored["history"].values()}) == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_a_training_that_is_resumed_goes_on_in_the_same_run(
    server,
    pages,  # noqa: F811
    runs,
    capfd,
):
    folder = interrupted(pages, runs, 5, "tracking=online", "tracking.deadline=120")  # as by SIGTERM, and to its end
    assert "wandb" not in capfd.readouterr().err
    [stored] = server.runs.values()
    assert (stored["inserted"], stored["exit"], server.asked.count("RunResumeStatus")) == (1, 0, 2)
    assert [line["_step"] for _, line in sorted(stored["history"].items())] == [1, 2, 3, 4]
    assert stored["tags"] == ["status:completed"]
    [artifact] = server.artifacts.values()
    assert artifact["committed"]
    [best] = (folder / "checkpoints").glob("best-*.ckpt")
    assert artifact["files"].keys() == {best.name, "wandb_manifest.json"}
    private = (str(pages), str(runs), KEY)
    assert not [secret for secret in private if any(secret.encode() in body for body in server.received())]
