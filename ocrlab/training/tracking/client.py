"""The experiment tracker, in a process of its own, so that no trouble there can reach training.

Training writes JSON lines into a pipe that never blocks and reads answers that may never come:

    training --start, log, artifact, finish--> python -m ocrlab.training.tracking.process --ready, warning-->

An import that hangs, a server that does not answer or a crash costs at most `deadline` seconds at the end and a line.
An online run whose server does not take it begins again offline, in a new process, with all that it was sent so far.
When training dies without a word the pipe closes, and the tracker marks the run as failed by itself.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ocrlab import redaction, run_folder, safe_read
from ocrlab.config.schema import Tracking
from ocrlab.errors import OcrlabError
from ocrlab.hardware.processes import process_tree
from ocrlab.inference import checkpoint, pretrained
from ocrlab.records import SCHEMA, finite

BACKLOG = 16 * 2**20  # bytes kept for a tracker that does not read; beyond it, it is given up
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"  # of a run id, as wandb makes them


def run_name(user: str, encoder: str, decoder: str, batch_size: int, lr: float, score: float | None = None) -> str:
    """Return `<user>_<encoder>-<decoder>-dbhead-dbloss-bs<B>-lr<LR>_<score>`; no end where there is no score."""
    name = f"{user}_{encoder}-{decoder}-dbhead-dbloss-bs{batch_size}-lr{lr:g}"
    return name if score is None else f"{name}_{score:.4f}"


def start(settings: Tracking, name: str, folder: Path, config: Mapping[str, Any], step: int = 0) -> Tracker:
    """Start tracking a run whose files go below `folder`, from `step` on; returns at once, never raises."""
    tracker = Tracker(settings.mode, settings.deadline)
    if settings.mode != "disabled":
        folder = folder.absolute()  # the child works inside it
        message = {"mode": settings.mode, "project": settings.project, "name": name, "step": step}
        message |= {"id": run_id(folder), "deadline": settings.deadline, "config": redacted(config)}
        tracker.launch(folder, {"do": "start", **message})
    return tracker


def run_id(folder: Path) -> str:
    """Return the run's id for the tracker: made once, and kept in the run folder for the day that it is resumed."""
    file = place(folder) / "tracking.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(safe_read.read(file))["id"])
    new_id = "".join(secrets.choice(LETTERS) for _ in range(8))
    with contextlib.suppress(OSError, OcrlabError):
        run_folder.write_json(file, {"schema": SCHEMA, "id": new_id})
    return new_id


def place(folder: Path) -> Path:
    """Return where a tracker's own files go: `flight/`, where the run folder has one."""
    return folder / "flight" if (folder / "flight").is_dir() else folder


def redacted(value: Any) -> Any:
    """Return `value` without absolute paths, user and host, and what redaction takes for private or secret."""
    return redaction.clean(_without_names(value))


def _without_names(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _without_names(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_names(item) for item in value]
    if not isinstance(value, str):
        return value
    value = f"<path>/{Path(value).name}" if value.startswith(("/", "~")) else value
    names = {"<host>": socket.gethostname()}
    with contextlib.suppress(Exception):  # no such user in a container
        names["<user>"] = getpass.getuser()
    for shown, name in names.items():  # common words, too, which redaction leaves
        value = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", shown, value) if len(name) > 2 else value
    return value


class Tracker:
    """The training side of the pipe: every call returns soon, none raises, all trouble together is one warning."""

    def __init__(self, mode: str, deadline: float) -> None:
        self.mode, self.deadline = mode, deadline
        self.child: subprocess.Popen[bytes] | None = None
        self.warning: str | None = None
        self.folder = Path()
        self._ready = False
        self._troubles: list[str] = []  # with one row or file; reported together at the end
        self._sync: str | None = None  # the folder, below the run's, that `wandb sync` would send
        self._started = time.monotonic()
        self._first: dict[str, Any] = {}
        self._sent = b""  # until the tracker is ready: what a second one would need
        self._out, self._in = b"", b""

    @property
    def on(self) -> bool:
        """False where no tracker runs, so there is nothing to prepare."""
        return self.child is not None

    def launch(self, folder: Path, first: Mapping[str, Any]) -> None:
        """Start the process that talks to the tracker; its chatter goes to `flight/tracking.log`."""
        self.folder, self._first, self._started = folder, dict(first), time.monotonic()
        paths = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), str(Path(__file__).parents[3])]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, paths)), "WANDB_DIR": str(folder)}
        env.setdefault("WANDB_ERROR_REPORTING", "false")  # errors are reported here, and to nobody else
        try:
            with open(place(folder) / "tracking.log", "ab") as log:
                self.child = subprocess.Popen(
                    [sys.executable, "-m", "ocrlab.training.tracking.process"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    cwd=folder,
                    env=env,
                    start_new_session=True,  # Ctrl-C is for training, which then says how it ended
                )
        except OSError as error:
            self._give_up(f"it cannot be started ({error})")
            return
        for pipe in (self.child.stdin, self.child.stdout):
            assert pipe is not None, "both were asked for"
            os.set_blocking(pipe.fileno(), False)
        self._out, self._in = _line(self._first), b""
        self._pump()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Send the metrics of one step."""
        self._send({"do": "log", "metrics": dict(metrics), "step": step})
        if self.child is not None and not self._ready and time.monotonic() - self._started > self.deadline:
            why = f"not ready after {self.deadline:g} s"
            self._go_offline(why) if self._first["mode"] == "online" else self._give_up(why)

    def artifact(self, file: Path, digest: str, about: Mapping[str, Any]) -> None:
        """Send a file to be kept with the run; `digest` is its SHA-256, and the file must stay where it is."""
        self._send({"do": "artifact", "file": str(file), "sha256": digest, "about": redacted(about)})

    def finish(self, status: str, name: str | None = None, metrics: Mapping[str, float] | None = None) -> None:
        """Tag the run `status:<status>` (completed or failed), give it its final name, and wait at most `deadline`."""
        self._send({"do": "finish", "status": status, "name": name, "metrics": dict(metrics or {})})
        end = time.monotonic() + self.deadline
        while (child := self.child) is not None:
            status_of_child = child.poll()
            self._pump()  # its last words, too; after them another tracker may have begun
            if self.child is not child:
                continue
            if status_of_child is not None:
                break
            if time.monotonic() > end:
                self._give_up(f"not finished after {self.deadline:g} s")
            time.sleep(0.02)
        if self.child is not None and self.child.returncode:
            self._give_up(f"it ended with status {self.child.returncode}")
        elif self._troubles:
            self.warn(f"{'; '.join(self._troubles)}; the rest is there")
        self._end()

    def _send(self, message: Mapping[str, Any]) -> None:
        if self.child is not None:
            line = _line(message)
            self._out += line
            self._sent = b"" if self._ready else self._sent + line
            self._pump()

    def _pump(self) -> None:
        """Write what the pipe takes, read what there is, and notice a tracker that has gone."""
        child = self.child
        if child is None or child.stdin is None or child.stdout is None:
            return
        try:
            while self._out:
                self._out = self._out[os.write(child.stdin.fileno(), self._out[:65536]) :]
        except BlockingIOError:
            pass
        except OSError:
            self._out = b""  # it closed its end: its answer or its status says why
        with contextlib.suppress(OSError):
            while data := os.read(child.stdout.fileno(), 65536):
                self._in += data
        *lines, self._in = self._in.split(b"\n")
        for line in lines:
            self._handle_answer(line)
        if len(self._out) > BACKLOG:
            self._give_up("it does not read what it is sent")

    def _handle_answer(self, line: bytes) -> None:
        answer: Any = None
        with contextlib.suppress(ValueError):
            answer = json.loads(line)
        if not isinstance(answer, dict):
            return
        self._ready = self._ready or bool(answer.get("ready"))
        self._sync = answer.get("sync") or self._sync
        if answer.get("refused") and self._first.get("mode") == "online":
            self._go_offline(str(answer["refused"]))
        elif answer.get("warning"):
            self.warn(str(answer["warning"]))
        elif answer.get("trouble") and len(self._troubles) < 3:
            self._troubles.append(str(answer["trouble"]))

    def _go_offline(self, why: str) -> None:
        """Start again with a tracker that asks no server, and send it what the first one was sent."""
        self._end()
        self.launch(self.folder, {**self._first, "mode": "offline"})
        self._out += self._sent
        self.warn(f"online tracking failed; it continues offline ({why}); send it later: {self._command()}")
        self._pump()

    def _command(self) -> str:
        """Return the command that sends a wandb run that was kept here."""
        what = self._sync or f"wandb/offline-run-*-{self._first.get('id')}"
        words = "wandb sync" if "offline-run-" in what else "wandb sync --include-online"  # else it is left out
        return f"cd {shlex.quote(os.path.relpath(self.folder))} && {words} {what}"

    def _give_up(self, why: str) -> None:
        later = f"; what it has is kept, send it later: {self._command()}" if self._sync else ""
        why = "; ".join([why, *self._troubles])
        self.warn(f"tracking is off for the rest of this run: {why}{later}; training continues")
        self._end()

    def _end(self) -> None:
        """End the tracker and all that it started; wandb's own process is in a session of its own."""
        child, self.child = self.child, None
        if child is None:
            return
        for process in process_tree.descendants(child.pid) if child.poll() is None else ():
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1)

    def warn(self, text: str) -> None:
        """Print one line, the first time that something goes wrong."""
        if self.warning is None:
            self.warning = text
            which = "tensorboard" if self.mode == "tensorboard" else "wandb"
            with contextlib.suppress(Exception):
                print(f"ocrlab: {which}: {text}", file=sys.stderr, flush=True)


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(finite(dict(message)), default=str).encode() + b"\n"


def send_best(tracker: Tracker, best: Path | None, metrics: Mapping[str, float]) -> None:
    """Send the best checkpoint to the tracker, without what it says of this machine, and its SHA-256."""
    if best is None or not tracker.on:
        return
    copy = tracker.folder / "flight" / "artifact" / best.name
    try:
        checkpoint.write_shareable(best, copy)
        tracker.artifact(copy, pretrained.sha256(copy), metrics)
    except (OSError, OcrlabError) as error:
        tracker.warn(f"the best checkpoint is not sent: {error}")
