"""Run any command under watch and return how it ended.

Follow a crash from here: `Session.step` passes on output and signals until the program ends, `WatchedRun.finish` names
its exit status, gathers the evidence, and writes the verdict.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ocrlab.debug.watch import cuda_debug_env, error_hook, incident_folder
from ocrlab.debug.watch.child_process import CommandRefused
from ocrlab.debug.watch.hang_detector import HangDetector
from ocrlab.debug.watch.io_loop import Session
from ocrlab.debug.watch.lifecycle import Ended, Options, WatchedRun
from ocrlab.errors import ConfigError, RunError
from ocrlab.run_folder import RunFolder, heartbeat, watcher_link

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
    folder = None
    if not options.own_folder:
        try:
            folder = incident_folder.open_folder(options.run_dir, command)
        except RunError as error:
            if not isinstance(error.__cause__, OSError):
                raise  # a run lives there
            folder = incident_folder.spare(command)  # the program runs all the same
            why = f"{error.what} ({error.got}). Choose another folder with --run-dir DIR."
            print(f"ocrlab watch: {why} This run is written to {folder.path}", file=sys.stderr, flush=True)
    scratch = Path(tempfile.mkdtemp(prefix="ocrlab-watch-"))
    session = Session(HangDetector(options.silence, scratch / "heartbeat"), output)
    run = WatchedRun(list(command), options, session, scratch, folder)
    session.before_stop = run.before_stop
    try:
        flight = folder.flight if folder else Path(tempfile.gettempdir()).absolute()
        variables = _environment(dict(os.environ if env is None else env), options, scratch, flight)
        try:
            session.start(_recorded(command, options, session, folder), variables, scratch)
        except CommandRefused as refused:
            return run.refused(refused)
        run.kills.note()
        if options.debug_cuda:
            session.write_message(cuda_debug_env.words(flight))
        due = now = time.monotonic()
        while session.alive:
            session.step(max(0.0, due - now))
            now = time.monotonic()
            if now >= due or session.child.code is not None:
                run.tick(now)
                due = now + run.wait(now)
        return run.finish()
    except BaseException as error:  # watching itself has failed; the program is ended with it
        if run.folder:
            run.folder.fail(error)
        raise
    finally:
        session.close()
        shutil.rmtree(scratch, ignore_errors=True)


def _recorded(command: Sequence[str], options: Options, session: Session, folder: RunFolder | None) -> list[str]:
    """Return the command, with the flight recorder in its script where that is asked for and its names are clear."""
    if not options.record or folder is None:
        return list(command)
    from ocrlab.debug.watch import recording_edits  # the diagnosis, which a program that succeeds does without

    recorded = recording_edits.recorded_command(command, folder.path)
    if isinstance(recorded, str):
        do = "add `rec = ocrlab.record(RUN, model, optimizer)` and `rec.batches(loader)` to it"
        session.write_message(f"ocrlab watch: not recorded: {recorded}; {do}")
        return list(command)
    return recorded


def _check(command: Sequence[str], options: Options) -> None:
    if not command:
        raise ConfigError("There is no command to watch", need="ocrlab watch [options] -- COMMAND")
    for name, value in (("silence", options.silence), ("timeout", options.timeout)):
        if value is not None and not value > 0:
            raise ConfigError(f"--{name} must be a positive number of seconds", got=value, need="more than 0 seconds")
    if options.on_hang not in (None, "report", "kill"):
        raise ConfigError("--on-hang is unknown", got=options.on_hang, need="report or kill")


def _environment(user: dict[str, str], options: Options, scratch: Path, dumps: Path) -> dict[str, str]:
    """Return the program's environment; core dumps of a GPU go to `dumps`."""
    beats = scratch / "heartbeat"
    beats.mkdir()
    user.setdefault("PYTHONFAULTHANDLER", "1")  # silent until a signal kills: then the stack goes to stderr
    ours = {watcher_link.FOLDER: str(scratch), heartbeat.FOLDER: str(beats)}
    ours |= error_hook.environment(scratch, user) if options.inside else {}
    return {**user, **ours, **(cuda_debug_env.environment(dumps, user) if options.debug_cuda else {})}
