"""Run any command under watch and say how it ended; the door of this room."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ocrlab import run_folder
from ocrlab.debug.watch import cuda_debug_env, error_hook, incident_folder
from ocrlab.debug.watch.child_process import CommandRefused
from ocrlab.debug.watch.hang_detector import HangDetector
from ocrlab.debug.watch.io_loop import Session
from ocrlab.debug.watch.lifecycle import Ended, Options, WatchedRun
from ocrlab.errors import ConfigError, RunError
from ocrlab.run_folder import heartbeat, watcher_link

__all__ = ["Ended", "Options", "watch"]


def watch(
    command: Sequence[str],
    options: Options | None = None,
    *,
    output: Callable[[int, bytes], None] | None = None,
    env: Mapping[str, str] | None = None,
) -> Ended:
    """Run a command to its end; raises ConfigError for wrong options and RunError for a folder of a run that lives.

    Its output goes where ours goes, or to `output(stream, data)` with stream 1 or 2; then its stdin is empty.
    """
    options = options or Options()
    _check(command, options)
    folder = None if options.own_folder else _folder(options, command)
    scratch = Path(tempfile.mkdtemp(prefix="ocrlab-watch-"))
    session = Session(HangDetector(options.silence, scratch / "heartbeat"), output)
    case = WatchedRun(list(command), options, session, scratch, folder)
    try:
        variables, words = _environment(dict(os.environ if env is None else env), case)
        try:
            session.start(list(command), variables, scratch)
        except CommandRefused as refused:
            return case.refused(refused)
        case.kills.note()
        if words:
            session.write_message(words)
        due = now = time.monotonic()
        while session.alive:
            session.step(max(0.0, due - now))
            now = time.monotonic()
            if now >= due or case.child.code is not None:
                case.tick(now)
                due = now + case.wait(now)
        return case.finish()
    except BaseException as error:
        case.broke(error)
        raise
    finally:
        session.close()
        shutil.rmtree(scratch, ignore_errors=True)


def _check(command: Sequence[str], options: Options) -> None:
    if not command:
        raise ConfigError("There is no command to watch", need="ocrlab watch [options] -- COMMAND")
    for name in ("silence", "timeout"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            raise ConfigError(f"--{name} is no time", got=value, need="seconds, more than 0")
    if options.on_hang not in (None, "report", "kill"):
        raise ConfigError("--on-hang is unknown", got=options.on_hang, need="report or kill")


def _folder(options: Options, command: Sequence[str]) -> run_folder.RunFolder:
    """Open the run folder; where it cannot be written the program runs all the same, and is written down elsewhere."""
    try:
        return incident_folder.open_folder(options.run_dir, command)
    except RunError as error:
        if not isinstance(error.__cause__, OSError):
            raise  # a run lives there
        folder = incident_folder.spare(command)
        why = f"{error.what} ({error.got}). Choose another folder with --run-dir DIR."
        print(f"ocrlab watch: {why} This run is written to {folder.path}", file=sys.stderr, flush=True)
        return folder


def _environment(user: dict[str, str], case: WatchedRun) -> tuple[dict[str, str], str]:
    """Return the program's environment, and what is to be said about it."""
    beats = case.scratch / "heartbeat"
    beats.mkdir()
    ours = {watcher_link.FOLDER: str(case.scratch), heartbeat.FOLDER: str(beats)}
    user.setdefault("PYTHONFAULTHANDLER", "1")  # silent until a signal kills: then the stack goes to stderr
    ours |= error_hook.environment(case.scratch, user) if case.options.inside else {}
    if not case.options.debug_cuda:
        return {**user, **ours}, ""
    dumps = case.folder.flight if case.folder else Path(tempfile.gettempdir()).absolute()
    return {**user, **ours, **cuda_debug_env.environment(dumps, user)}, cuda_debug_env.words(dumps)
