"""Tracking never blocks, never raises and never hangs training, whatever a package named wandb does."""

import getpass
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ocrlab.config.schema import Config, Tracking
from ocrlab.inference import checkpoint
from ocrlab.inference.pretrained import sha256
from ocrlab.training.tracking import client

FAKE = """
import json, os, time
class Settings:
    model_fields = {"root_dir": None, "init_timeout": None}
    def __init__(self, **values): self.values = values
class Run:
    def __init__(self, **values):
        self.values, self.name, self.tags, self.summary = values, values["name"], values.get("tags", ()), {}
    def log(self, metrics, step): self.values.setdefault("rows", []).append([step, metrics])
    def finish(self, exit_code):
        FINISH
        sent = {k: v for k, v in self.values.items() if k not in ("settings", "id", "resume")}
        sent |= {"name": self.name, "tags": self.tags, "exit_code": exit_code, "summary": self.summary}
        open(os.path.join(os.environ["WANDB_DIR"], "sent.json"), "w").write(json.dumps(sent))
def init(**values):
    INIT
    return Run(**values)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Put a package named wandb before the real one: `fake(top=..., init=..., finish=...)`, each a statement."""

    def make(top: str = "", init: str = "pass", finish: str = "pass") -> Path:
        place = tmp_path / "path" / "wandb"
        place.mkdir(parents=True)
        (place / "__init__.py").write_text(top + FAKE.replace("FINISH", finish).replace("INIT", init))
        monkeypatch.setenv("PYTHONPATH", str(place.parent))
        folder = tmp_path / "run"
        folder.mkdir()
        return folder

    return make


def settings(mode: str = "offline", deadline: float = 20) -> Tracking:
    return Tracking(mode=mode, user="me", project="lab", deadline=deadline)  # type: ignore[arg-type]


def sent_record(folder: Path) -> dict[str, object]:
    record: dict[str, object] = json.loads((folder / "sent.json").read_text())
    return record


def test_everything_arrives_in_order(fake, capfd) -> None:  # type: ignore[no-untyped-def]
    folder = fake()
    tracker = client.start(settings(), "first", folder, {"batch_size": 4, "data": "/somewhere/secret/sroie"})
    for step in range(3):
        tracker.log({"loss": step / 2, "bad": float("nan")}, step)
    tracker.finish("completed", "last_0.9", {"hmean@0.5": 0.9})
    assert sent_record(folder) == {
        "project": "lab", "name": "last_0.9", "tags": ["status:completed"],
        "config": {"batch_size": 4, "data": "<path>/sroie"}, "mode": "offline",
        "rows": [[0, {"loss": 0.0}], [1, {"loss": 0.5}], [2, {"loss": 1.0}]],
        "summary": {"hmean@0.5": 0.9}, "exit_code": 0,
    }  # fmt: skip
    assert capfd.readouterr().err == ""


def test_disabled_starts_nothing(fake, capfd) -> None:  # type: ignore[no-untyped-def]
    folder = fake(top="import time; time.sleep(600)\n")
    tracker = client.start(settings("disabled"), "first", folder, {})
    tracker.log({"loss": 1.0}, 1)
    tracker.finish("completed", "last")
    assert tracker.child is None
    assert list(folder.iterdir()) == []
    assert "wandb" not in sys.modules
    assert capfd.readouterr().err == ""


def test_an_import_that_hangs_costs_a_single_deadline_and_a_single_line(fake, capfd) -> None:  # type: ignore[no-untyped-def]
    folder = fake(top="import time; time.sleep(600)\n")
    before = time.monotonic()
    tracker = client.start(settings(deadline=3), "first", folder, {})
    for step in range(1000):
        tracker.log({"loss": 1.0}, step)
    assert time.monotonic() - before < 3
    child = tracker.child
    tracker.finish("completed")
    tracker.log({"loss": 1.0}, 1001)
    tracker.finish("completed")
    assert time.monotonic() - before < 12
    stderr = capfd.readouterr().err
    assert stderr.count("\n") == 1
    assert "not finished after 3 s; training continues" in stderr
    assert child is not None
    assert child.returncode == -signal.SIGKILL


@pytest.mark.parametrize(("fault", "word"), [
    ({"top": "raise ImportError('no wandb here')\n"}, "no wandb here"),
    ({"init": "os._exit(7)"}, "status 7"),
    ({"finish": "raise RuntimeError('disk full')"}, "status 1"),
])  # fmt: skip
def test_trouble_is_a_single_line_of_warning(fake, capfd, fault: dict[str, str], word: str) -> None:  # type: ignore[no-untyped-def]
    tracker = client.start(settings(), "first", fake(**fault), {})
    tracker.log({"loss": 1.0}, 1)
    tracker.finish("completed", "last")
    stderr = capfd.readouterr().err
    assert stderr.count("\n") == 1
    assert word in stderr


def test_online_that_fails_goes_on_offline_with_a_single_line(fake, capfd) -> None:  # type: ignore[no-untyped-def]
    folder = fake(init="if values['mode'] == 'online': raise ConnectionError('unreachable')")
    tracker = client.start(settings("online"), "first", folder, {})
    tracker.log({"loss": 1.0}, 1)
    tracker.finish("completed", "last")
    assert sent_record(folder)["mode"] == "offline"
    assert sent_record(folder)["rows"] == [[1, {"loss": 1.0}]]
    stderr = capfd.readouterr().err
    assert stderr.count("\n") == 1
    assert "continues offline (ConnectionError: unreachable); send it later: cd " in stderr


def test_an_online_start_that_hangs_begins_again_offline_and_nothing_is_lost(fake, capfd) -> None:  # type: ignore[no-untyped-def]
    folder = fake(init="if values['mode'] == 'online': time.sleep(600)")
    tracker = client.start(settings("online", deadline=8), "first", folder, {})
    first = tracker.child
    assert first is not None
    tracker.log({"loss": 1.0}, 1)
    tracker._started -= 8  # as if that long had gone by
    tracker.log({"loss": 2.0}, 2)
    assert first.poll() == -signal.SIGKILL
    tracker.finish("completed", "last")
    expected = ("offline", [[1, {"loss": 1.0}], [2, {"loss": 2.0}]])
    assert (sent_record(folder)["mode"], sent_record(folder)["rows"]) == expected
    stderr = capfd.readouterr().err
    assert stderr.count("\n") == 1
    assert "not ready after 8 s" in stderr


def test_trouble_with_a_single_file_is_reported_at_the_end_and_the_rest_arrives(fake, capfd) -> None:  # type: ignore[no-untyped-def]
    folder = fake()
    tracker = client.start(settings(), "first", folder, {})
    tracker.artifact(folder / "best.ckpt", "no digest", {})
    tracker.log({"loss": 1.0}, 4)
    tracker.finish("completed", "last")
    assert sent_record(folder)["rows"] == [[4, {"loss": 1.0}]]
    stderr = capfd.readouterr().err
    assert stderr.count("\n") == 1
    assert "artifact: " in stderr


def test_a_finish_that_hangs_is_ended(fake, capfd) -> None:  # type: ignore[no-untyped-def]
    tracker = client.start(settings(deadline=3), "first", fake(finish="time.sleep(600)"), {})
    before = time.monotonic()
    tracker.finish("completed", "last")
    assert time.monotonic() - before < 12
    assert capfd.readouterr().err.count("\n") == 1


def test_a_tracker_that_does_not_read_is_abandoned(fake, capfd, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(client, "BACKLOG", 100_000)
    tracker = client.start(settings(), "first", fake(top="import time; time.sleep(600)\n"), {})
    for step in range(5000):
        tracker.log({"a rather long name of a metric": 1.0}, step)
    assert tracker.child is None
    assert "does not read" in capfd.readouterr().err


def test_a_training_that_is_killed_is_tagged_failed(fake) -> None:  # type: ignore[no-untyped-def]
    folder = fake()
    code = f"""
import os, pathlib
from ocrlab.config.schema import Tracking
from ocrlab.training.tracking import client as tracking
tracker = tracking.start(Tracking(mode="offline", deadline=20), "first", pathlib.Path({str(folder)!r}), {{}})
tracker.log({{"loss": 1.0}}, 1)
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    end = time.monotonic() + 20
    while not (folder / "sent.json").exists() and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.5)  # it may be half written
    assert sent_record(folder)["tags"] == ["status:failed"]


def test_redaction() -> None:
    user, host = getpass.getuser(), socket.gethostname()
    if len(user) > 2:
        assert client.redacted(f"run of {user}, not of x{user}") == f"run of <user>, not of x{user}"
    if len(host) > 2 and host != user:
        assert client.redacted(f"on {host}.") == "on <host>."
    clean = client.redacted({"a": ["~/me/x.yaml", 1, None, True], "b": ("/etc/passwd", "resnet18"), "c": 0.5})
    assert clean == {"a": ["<path>/x.yaml", 1, None, True], "b": ["<path>/passwd", "resnet18"], "c": 0.5}
    assert client.redacted({"note": "mail ana@example.com"}) == {"note": "mail (user)@(host)"}


class Taker:
    """A tracker that keeps what it gets."""

    def __init__(self, folder: Path, on: bool = True) -> None:
        self.folder, self.on, self.files, self.warnings = folder, on, [], []  # type: ignore[var-annotated]

    def artifact(self, file: Path, digest: str, about: Any) -> None:
        self.files.append((file, digest, about))

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def test_the_best_checkpoint_goes_without_what_it_says_of_this_machine(tmp_path: Path) -> None:
    config = Config(data="/srv/private/receipts", runs="/srv/private/runs", weights="/srv/private/w.ckpt")
    config.tracking.user = "ana"
    best = tmp_path / "checkpoints" / "best-x.ckpt"
    card = checkpoint.card(config, 7, {"hmean@0.5": 0.5})
    checkpoint.save({"ocrlab": card, "detector": {"a": torch.ones(2)}}, best)
    tracker = Taker(tmp_path)
    client.send_best(tracker, best, {"hmean@0.5": 0.5})
    [(file, digest, about)] = tracker.files
    assert (file, digest, about) == (tmp_path / "flight" / "artifact" / "best-x.ckpt", sha256(file), {"hmean@0.5": 0.5})
    content = checkpoint.load(file)
    assert "private" not in str(content) and "ana" not in str(content["ocrlab"])
    assert (content["ocrlab"]["step"], content["detector"]["a"].tolist()) == (7, [1.0, 1.0])
    assert "private" in str(checkpoint.load(best))  # the run's own stays whole
