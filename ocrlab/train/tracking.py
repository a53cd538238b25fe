"""The experiment tracker (wandb), in a process of its own, so that no trouble there can reach training.

Training writes JSON lines into a pipe that never blocks and reads answers that may never come:

    training --start, log, finish--> python -m ocrlab.train.tracking --ready, warning--> training

An import that hangs, a server that does not answer or a crash costs at most `deadline` seconds at the end and a line.
When training dies without a word the pipe closes, and the tracker marks the run as failed by itself.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from ocrlab.records import finite

BACKLOG = 16 * 2**20  # bytes kept for a tracker that does not read; beyond it, it is given up


class Settings(Protocol):
    """What is read of `config.Tracking`."""

    mode: Any
    user: str
    project: str
    deadline: float


def run_name(user: str, encoder: str, decoder: str, batch_size: int, lr: float, score: float | None = None) -> str:
    """Return `<user>_<encoder>-<decoder>-dbhead-dbloss-bs<B>-lr<LR>_<score>`; no end where there is no score."""
    name = f"{user}_{encoder}-{decoder}-dbhead-dbloss-bs{batch_size}-lr{lr:g}"
    return name if score is None else f"{name}_{score:.4f}"


def start(settings: Settings, name: str, tags: Iterable[str], folder: Path, config: Mapping[str, Any]) -> Tracker:
    """Start tracking a run whose files go below `folder`; returns at once, never raises."""
    tracker = Tracker(settings.mode, settings.deadline)
    if settings.mode != "disabled":
        said = {"mode": settings.mode, "project": settings.project, "name": name, "tags": list(tags)}
        tracker.launch(folder, {"do": "start", "deadline": settings.deadline, "config": redacted(config), **said})
    return tracker


def redacted(value: Any) -> Any:
    """Return `value` without absolute paths and without the names of this user and host."""
    if isinstance(value, Mapping):
        return {str(key): redacted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item) for item in value]
    if not isinstance(value, str):
        return value
    if value.startswith(("/", "~")):
        return f"<path>/{Path(value).name}"
    names = {"<host>": socket.gethostname()}
    with contextlib.suppress(Exception):  # no such user in a container
        names["<user>"] = getpass.getuser()
    for shown, secret in names.items():
        value = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", shown, value) if len(secret) > 2 else value
    return value


class Tracker:
    """The training side of the pipe: every call returns soon, none raises, all trouble together is one warning."""

    def __init__(self, mode: str, deadline: float) -> None:
        self.mode, self.deadline = mode, deadline
        self.child: subprocess.Popen[bytes] | None = None
        self.warning: str | None = None
        self._ready = False
        self._started = time.monotonic()
        self._out, self._in = b"", b""

    def launch(self, folder: Path, message: Mapping[str, Any]) -> None:
        """Start the process that talks to wandb; its chatter goes to `flight/tracking.log`."""
        folder = folder.absolute()  # the child works inside it
        paths = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), str(Path(__file__).parents[2])]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, paths)), "WANDB_DIR": str(folder)}
        try:
            place = folder / "flight" if (folder / "flight").is_dir() else folder
            with open(place / "tracking.log", "ab") as log:
                self.child = subprocess.Popen(
                    [sys.executable, "-m", "ocrlab.train.tracking"],
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
        self._send(message)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Hand over the metrics of one step."""
        self._send({"do": "log", "metrics": dict(metrics), "step": step})
        if self.child is not None and not self._ready and time.monotonic() - self._started > self.deadline:
            self._give_up(f"not ready after {self.deadline:g} s")

    def finish(self, status: str, name: str | None = None) -> None:
        """Tag the run `status:<status>` (completed or failed), give it its final name, and wait at most `deadline`."""
        self._send({"do": "finish", "status": status, "name": name})
        end = time.monotonic() + self.deadline
        while self.child is not None and self.child.poll() is None:
            if time.monotonic() > end:
                self._give_up(f"not finished after {self.deadline:g} s")
            self._pump()
            time.sleep(0.02)
        self._pump()  # its last words
        if self.child is not None and self.child.returncode:
            self._give_up(f"it ended with status {self.child.returncode}")
        if self.child is not None:
            _shut(self.child)
            self.child = None

    def _send(self, message: Mapping[str, Any]) -> None:
        if self.child is not None:
            self._out += json.dumps(finite(dict(message)), default=str).encode() + b"\n"
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
            self._out = b""  # it closed its end: its answer or its status tells why
        with contextlib.suppress(OSError):
            while data := os.read(child.stdout.fileno(), 65536):
                self._in += data
        *lines, self._in = self._in.split(b"\n")
        for line in lines:
            self._hear(line)
        if len(self._out) > BACKLOG:
            self._give_up("it does not read what it is sent")

    def _hear(self, line: bytes) -> None:
        with contextlib.suppress(ValueError, AttributeError):
            said = json.loads(line)
            self._ready = self._ready or bool(said.get("ready"))
            if said.get("warning"):
                self._warn(str(said["warning"]))

    def _give_up(self, why: str) -> None:
        self._warn(f"tracking is off for the rest of this run: {why}; training goes on")
        child, self.child = self.child, None
        if child is not None:
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)  # its own session: what it started goes with it
            _shut(child)

    def _warn(self, text: str) -> None:
        if self.warning is None:
            self.warning = text
            with contextlib.suppress(Exception):
                print(f"ocrlab: wandb: {text}", file=sys.stderr, flush=True)


def _shut(child: subprocess.Popen[bytes]) -> None:
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(1)


def serve() -> None:
    """Run the wandb side: read messages from stdin until `finish` or the end of the pipe."""
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever wandb prints goes to the log
    lines = (json.loads(line) for line in sys.stdin.buffer if line.endswith(b"\n"))  # the last one may be torn
    first = next(lines)
    with _deadline(first["deadline"]):
        try:
            run, warning = _open(first)
        except Exception as error:
            _answer(answers, f"tracking is off: {_short(error)}")
            return
    _answer(answers, warning)
    last: dict[str, Any] = {"status": "failed", "name": None}  # what holds when the pipe just ends
    for message in lines:
        if message["do"] == "finish":
            last = message
            break
        run.log({key: value for key, value in message["metrics"].items() if value is not None}, step=message["step"])
    with _deadline(first["deadline"]):
        run.name = last["name"] or run.name
        run.tags = (*(run.tags or ()), f"status:{last['status']}")
        run.finish(exit_code=0 if last["status"] == "completed" else 1)


def _answer(pipe: int, warning: str | None) -> None:
    with contextlib.suppress(OSError):  # training may have died meanwhile
        os.write(pipe, json.dumps({"ready": True, "warning": warning}).encode() + b"\n")


@contextlib.contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """End this process when the block takes longer; training may be gone and not be able to do it."""
    watchdog = threading.Timer(seconds, os._exit, (1,))
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()


def _open(first: Mapping[str, Any]) -> tuple[Any, str | None]:
    """Start the wandb run, offline where online fails; returns it and the warning, if any."""
    import wandb

    values = {
        "root_dir": os.environ["WANDB_DIR"],
        "init_timeout": first["deadline"] / 3,
        "console": "off",
        "silent": True,
        "disable_git": True,
        "save_code": False,
        "host": "",
        "username": "",
        "program": "ocrlab",
        "x_disable_meta": True,  # command line, host and user
        "x_disable_machine_info": True,
        "x_stats_pid": os.getppid(),
    }
    known = {key: value for key, value in values.items() if key in wandb.Settings.model_fields}
    wanted = {"project": first["project"], "name": first["name"], "tags": first["tags"], "config": first["config"]}
    try:
        return wandb.init(**wanted, mode=first["mode"], settings=wandb.Settings(**known)), None
    except Exception as error:
        if first["mode"] == "offline":
            raise
        run = wandb.init(**wanted, mode="offline", settings=wandb.Settings(**known))
        return run, f"online tracking failed, it goes on offline ({_short(error)}); send it later with `wandb sync`"


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:160]


if __name__ == "__main__":
    serve()
