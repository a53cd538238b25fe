"""The tracker's process: reads JSON lines from stdin and hands them to wandb or TensorBoard.

`python -m ocrlab.training.tracking.process` is started by client.py, which says what it sends. It answers `ready`
once, `refused` where a server does not take the run, and a `warning` that training prints. Start and finish have a
deadline, and so has all of it once training is gone: nobody else would end this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ocrlab.hardware.processes import process_tree

LOOK = 2.0  # seconds between two looks for training
SPARE = 2.0  # seconds after which this process ends itself where training should have done it


def serve() -> None:
    """Read messages from stdin until `finish` or the end of the pipe."""
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever a tracker prints goes to the log
    os.nice(5)  # training comes first
    lines = (json.loads(line) for line in sys.stdin.buffer if line.endswith(b"\n"))  # the last one may be torn
    first = next(lines)
    threading.Thread(target=outlive, args=(os.getppid(), 2 * first["deadline"]), daemon=True).start()
    with deadline(first["deadline"]):
        try:
            run = begin(first)
        except Exception as error:
            why = f"tracking is off: {short(error)}"
            if isinstance(error, ModuleNotFoundError) and error.name in ("tensorboard", "wandb"):
                extra = "tensorboard" if error.name == "tensorboard" else "train"
                install = f"pip install 'ocrlab[{extra}]', or tracking=disabled"
                why = f"tracking is off: {error.name} is not installed; {install}"
            if first["mode"] == "online" and not isinstance(error, ImportError):
                _answer(answers, refused=short(error))
            else:
                _answer(answers, warning=why)
            return
    _answer(answers, ready=True, sync=run.sync)
    last: dict[str, Any] = {"status": "failed", "name": None, "metrics": {}}  # what holds when the pipe just ends
    for message in lines:
        if message["do"] == "finish":
            last = message
            break
        try:
            hand_over(run, message)
        except Exception as error:
            at = f" of step {message['step']}" if "step" in message else ""
            _answer(answers, trouble=f"{message['do']}{at}: {short(error)}")
    with deadline(first["deadline"]):
        run.finish(last["status"], last["name"], last["metrics"])


def begin(first: Mapping[str, Any]) -> Any:
    """Return the run of the tracker that is asked for; its methods, as those of `TensorboardRun`, may raise or hang."""
    if first["mode"] == "tensorboard":
        return begin_tensorboard(first)
    from ocrlab.training.tracking import wandb_backend

    return wandb_backend.begin(first)


def hand_over(run: Any, message: Mapping[str, Any]) -> None:
    """Give one message to the tracker."""
    if message["do"] == "log":
        run.log({key: value for key, value in message["metrics"].items() if value is not None}, message["step"])
    elif message["do"] == "artifact":
        run.artifact(Path(message["file"]), message["sha256"], message["about"])


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """End this process and what it started when the block takes longer; training does it sooner, where it lives."""
    watchdog = threading.Timer(seconds + SPARE, _leave)
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()


def outlive(parent: int, seconds: float) -> None:
    """End this process when its training is gone for so long, whatever it waits for."""
    while os.getppid() == parent:
        time.sleep(LOOK)
    time.sleep(seconds + SPARE)
    _leave()


def _leave() -> None:
    for process in process_tree.descendants(os.getpid())[1:]:
        with contextlib.suppress(OSError):
            os.kill(process.pid, signal.SIGKILL)
    os._exit(1)


def _answer(pipe: int, **fields: Any) -> None:
    with contextlib.suppress(OSError):  # training may have died meanwhile
        os.write(pipe, json.dumps(fields).encode() + b"\n")


def short(error: Exception) -> str:
    """Return an error as one line."""
    text = " ".join(str(error).split()).partition(" Consider ")[0]
    return f"{type(error).__name__}: {text}"[:160]


FOLDER = "tensorboard"


def begin_tensorboard(first: Mapping[str, Any]) -> TensorboardRun:
    """Open an event file in the working folder; what an earlier one holds from that step on does not count any more."""
    import tensorboard  # noqa: F401  # torch's writer would say less of its absence
    from torch.utils.tensorboard import SummaryWriter

    again = first["step"] + 1 if os.path.isdir(FOLDER) else None
    return TensorboardRun(SummaryWriter(FOLDER, purge_step=again), first)


class TensorboardRun:
    """Event files in the run folder."""

    def __init__(self, writer: Any, first: Mapping[str, Any]) -> None:
        self.writer, self.first = writer, first
        self.sync: str | None = None

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Write scalars."""
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def artifact(self, file: Path, sha256: str, about: Mapping[str, Any]) -> None:
        """Write where the file lies and what it is; TensorBoard keeps no files."""
        self.writer.add_text("best checkpoint", f"{file.name}, SHA-256 {sha256}")

    def finish(self, status: str, name: str | None, metrics: Mapping[str, Any]) -> None:
        """Write settings and final metrics as hyperparameters, and close."""
        self.writer.add_text("run", f"{name or self.first['name']}, status:{status}")
        settings = flat_settings(self.first["config"])
        good = {key: value for key, value in metrics.items() if value is not None}
        self.writer.add_hparams(settings | {"status": status}, good or {"steps": 0.0}, run_name=".")
        self.writer.close()


def flat_settings(config: Mapping[str, Any], start: str = "") -> dict[str, Any]:
    """Return nested settings as dotted ones, of the types that TensorBoard takes: numbers, truth and text."""
    settings: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            settings |= flat_settings(value, f"{start}{key}.")
        else:
            settings[start + key] = value if isinstance(value, bool | int | float | str) else str(value)
    return settings


if __name__ == "__main__":
    serve()
