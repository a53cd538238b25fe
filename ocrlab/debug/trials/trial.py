"""One short run in a watched child, and how it ended: in the failure that is looked for, in another, or well."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

from ocrlab.debug.diagnosis import evidence, final_exception, load_input
from ocrlab.debug.diagnosis.verdict_files import EXCEPTION
from ocrlab.debug.watch.supervisor import Ended, Options, watch
from ocrlab.errors import DataError
from ocrlab.records import Cause, Incident, Verdict

Command = tuple[list[str], dict[str, str]]  # words, and environment variables: to be set, or unset where empty
Start = Callable[[int, list[int] | None, Path], Command]  # of a run (its bits), some pages or all, and its folder
SILENCE = (5.0, 60.0)  # seconds, least and most, of half the time limit: a hang is so long without progress
LONGEST = 120  # characters of the description of a failure
REPLAYED = re.compile(r"\breplay(?:-\d+)?\.json$")
HANG, SLOW = "hang", "over its time"
LOG_LIMIT = 1 << 20  # bytes of output kept of a run
LAST_WORDS = 100  # characters of the last line of a program that ends itself without an exception
# The same fault surfaces under another name where it happens in the main process instead of a worker, or is seen late.
ALIKE = (
    ("loader.worker_crash", "native.segv", "native.abort", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE"),
    ("loader.worker_killed", "host.oom_kill", "host.alloc_fail", "SIGKILL"),
    ("kernel.illegal_address", "kernel.launch_failure", "kernel.cascade", "kernel.math_library", "data.index_range"),
    ("gpumem.capacity", "gpumem.fragmentation", "gpumem.leak", "gpumem.raw_alloc"),
)
VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?|'[^']*/[^']*'|(?:/[\w.-]+)+")
PARENTHESES = re.compile(r"\[[#, ]*\]")
# torch says it in three ways, by who notices first: with one process, with several, with the exit status.
WORKER = re.compile(r"DataLoader worker \(pid.*", re.DOTALL)
SHELL = 'cd "$1" && shift && exec "$@"'


@dataclass(frozen=True)
class RunResult:
    """How one run ended: `what` is empty where it did well, else the failure's fingerprint; its words, its seconds.

    `causes` are those of its verdict, with how sure each is.
    """

    fingerprint: str
    description: str
    seconds: float
    causes: tuple[tuple[str, float], ...] = ()


def run_trial(start: Callable[[Path], Command], place: Path, timeout: float) -> RunResult:
    """Run the command that `start(place)` returns, under watch, and say how it ended; `place` is a new folder.

    Its output stays in `place`/output.txt, and of a failure the incident; the rest is removed. A signal that reached us
    meanwhile has ended the program: KeyboardInterrupt or SystemExit goes on from here.
    """
    place.mkdir(parents=True, mode=0o700)
    command, env = start(place)
    run = place / "run"
    silence = max(SILENCE[0], min(SILENCE[1], timeout / 2))
    began = time.monotonic()
    options = Options(run, silence=silence, timeout=timeout, on_hang="kill")
    environment = {name: value for name, value in {**os.environ, **env}.items() if value or name not in env}
    ended = watch_into(place / "output.txt", command, options, environment)
    seconds = time.monotonic() - began
    incident = Incident(ended.status, ended.exit_code, ended.signal)
    if ended.verdict is not None:
        with contextlib.suppress(DataError):
            incident = load_input.read_run_folder(ended.folder or run)
    for left in place.iterdir():  # all that the program wrote
        if left.name != "output.txt" and not (left.name == "run" and ended.verdict):
            with contextlib.suppress(OSError):
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    pass_signal_on(ended, incident.facts)
    if ended.status == "success":
        return RunResult("", "passed", seconds)
    if ended.verdict is None:
        return RunResult(f"exit status {ended.exit_code}", f"exit status {ended.exit_code}", seconds)
    causes = tuple((cause.id, cause.confidence) for cause in ended.verdict.causes)
    return RunResult(*fingerprint(ended.verdict, incident), seconds, causes)


def watch_into(file: Path, command: Sequence[str], options: Options, environment: dict[str, str]) -> Ended:
    """Run a command under watch; its output goes into a file, LOG_LIMIT bytes of it at most."""
    with file.open("wb") as output:

        def write(_stream: int, data: bytes) -> None:
            if output.tell() < LOG_LIMIT:
                output.write(data)

        return watch(command, options, output=write, env=environment)


def pass_signal_on(ended: Ended, facts: Mapping[str, Any]) -> None:
    """Go on with a signal that reached this process while the child ran: KeyboardInterrupt or SystemExit."""
    if facts.get("ended_by") == "user":
        raise KeyboardInterrupt
    if facts.get("ended_by") == "outside":
        raise SystemExit(ended.exit_status)


def is_same_failure(fingerprint_a: str, fingerprint_b: str) -> bool:
    """Return whether two fingerprints stand for the same failure."""
    return fingerprint_a == fingerprint_b or any(fingerprint_a in group and fingerprint_b in group for group in ALIKE)


def fingerprint(verdict: Verdict, incident: Incident) -> tuple[str, str]:
    """Return what makes a failure the same one again, and the words for it.

    It is the hang, the cause's id, the exception with numbers and paths left out, the signal, or the exit status.
    """
    if verdict.status in ("hung", "suspected"):
        name = verdict.causes[0].id if verdict.causes else "no progress"
        return (SLOW, "not done in its time") if evidence.still_moved(incident) else (HANG, f"a hang ({name})")
    cause = verdict.causes[0] if verdict.causes else None
    if cause and cause.confidence >= 0.5 and cause.id != "ext.signal":
        line = evidence_line(cause)
        return cause.id, f"{cause.id}: {line}" if line else cause.id
    thrown = final_exception.find_uncaught(evidence.clean_texts(incident))
    if thrown is not None:
        text = thrown.own.text.strip()
        same = PARENTHESES.sub("[#]", VARIES.sub("#", WORKER.sub("DataLoader worker ended", text)))
        return same[:160], shorten_line(text)
    if verdict.signal:
        return verdict.signal, f"killed by {verdict.signal}"
    status = f"exit status {verdict.exit_code}"
    texts = [page.text.strip() for page in evidence.clean_texts(incident)]
    last_line = next((text.rpartition("\n")[2].strip() for text in texts if text), "")
    return status, f"{status} after `{last_line[:LAST_WORDS]}`" if last_line else status


def evidence_line(cause: Cause) -> str:
    """Return the line of evidence that says best what failed: an exception's, else the program's, else a replay's."""
    lines = [line.text for line in cause.evidence if not REPLAYED.search(line.file)]
    raised = [text for text in lines if EXCEPTION.match(text.strip())]
    return next((shorten_line(text) for text in [*raised, *lines, *(line.text for line in cause.evidence)]), "")


def shorten_line(text: str) -> str:
    """Return the beginning of a text on one line, with a mark where it was cut."""
    text_start = shorten(text, LONGEST, placeholder=" …")
    return text_start if text_start != "…" else f"{text.strip()[: LONGEST - 1]}…"  # one long word


def recorded_failure(run: Path) -> tuple[str, str] | None:
    """Return the fingerprint and the words of the failure that a run folder holds, None where it holds none."""
    try:
        incident = load_input.read_run_folder(run)
    except DataError:
        return None
    from ocrlab.debug.diagnosis.classify import classify

    verdict = classify(incident)
    return None if verdict.status == "log" else fingerprint(verdict, incident)


def rerun_command(
    run: Path,
    command: Sequence[str],
    folder: str | None,
    *,
    count: int,
    timeout: float,
    report: Callable[[str], None] = lambda _text: None,
) -> dict[str, Any]:
    """Run `command` `count` times, each at most `timeout` seconds, and compare each end with the failure of `run`.

    Returns {"wanted", "same", "runs": [{"same", "told", "seconds"}]}; without runs {"why"} says why not. An `ocrlab
    train` writes its runs into a folder of its own, which is removed. A signal that reached us ends it: it goes on.
    """
    wanted = recorded_failure(run)
    if wanted is None:
        return {"why": "the folder holds no failure to compare with", "runs": []}
    if folder is not None and not Path(folder).is_dir():
        return {"why": "the folder in which it was started is not there", "runs": []}
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="ocrlab-again-", ignore_cleanup_errors=True) as place:
        for number in range(1, count + 1):
            report(f"run {number} of {count}: {' '.join(command)[:120]}")
            start = partial(_start_again, run, command, folder)
            result = run_trial(start, Path(place, str(number)), timeout)
            same = bool(result.fingerprint) and is_same_failure(result.fingerprint, wanted[0])
            runs.append({"same": same, "told": result.description, "seconds": round(result.seconds, 1)})
    return {"wanted": wanted[1], "same": sum(result["same"] for result in runs), "runs": runs}


def _start_again(run: Path, command: Sequence[str], folder: str | None, inside: Path) -> Command:
    """Return the command as it is started: in its folder, and an `ocrlab train` with its own config and a new place."""
    words = list(command)
    if words[:1] == ["ocrlab"]:
        words = [sys.executable, "-m", "ocrlab", *words[1:]]
        if words[3:4] == ["train"] and (run / "config.yaml").is_file():
            config, runs = (run / "config.yaml").absolute(), inside.absolute() / "runs"
            words = [*words[:4], "--config", str(config), f"runs={runs}", "tracking=disabled"]
    return ["sh", "-c", SHELL, "sh", folder or os.getcwd(), *words], {}
