"""From a program that failed to a verdict on disk: what is known of it, who judges it, and the words for people."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import shlex
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ocrlab import run_folder
from ocrlab.debug.flight_record import last_position
from ocrlab.debug.watch import error_hook, kernel_log_filter
from ocrlab.debug.watch.child_process import Child
from ocrlab.debug.watch.hang_detector import HangDetector
from ocrlab.debug.watch.memory_tracker import OomKillCounters
from ocrlab.hardware.processes import exit_codes, kernel_log, process_tree, stack_dumps
from ocrlab.records import Cause, Incident, Verdict, to_json
from ocrlab.redaction import clean
from ocrlab.run_folder import heartbeat
from ocrlab.run_folder.fail_safe import append_own_error, guarded

STACK_SECONDS = 1.0
EXIT_OF_SIGNAL = 128  # what a shell adds to the number of the signal
LONGEST = 240  # characters of evidence on the screen; all of it is in the verdict
SURE = 0.8  # from here on the fix is told, below it the experiment that would settle it
ISA = ("avx", "amx", "fma", "sse4", "f16c", "bmi", "asimd", "sve")  # what an illegal instruction may need
LOG, STACKS, KERNEL = "log_tail.txt", "stacks.txt", "kernel_log.txt"


def gather(
    child: Child,
    quiet: HangDetector,
    kills: OomKillCounters,
    log: str,
    status: str,
    ended_by: str | None,
    home: Path | None = None,
) -> Incident:
    """Return everything that is known of a failure; with the stacks of all that lives where it hangs.

    `home` is the run folder, for what our own code fails at.
    """
    texts, facts = {LOG: log}, _facts(child, quiet, ended_by)
    counted = kills.count()
    if status in ("hung", "suspected") and child.code is None:
        quiet.end_look()
        taken = stack_dumps.take(process_tree.descendants(child.pid), STACK_SECONDS)
        facts["pids"] = sorted({*facts["pids"], *(stack.process.pid for stack in taken)})
        texts[STACKS] = stack_dumps.text(taken)
        for stack in taken:
            kills.note(stack.process.pid)  # the groups that are its own, for the kernel log
        hang = _hang(taken, {**facts, "stacks_before": quiet.before, "log": log}, texts[STACKS], home)
        facts |= {"hang": hang} if hang else {}
    kernel_lines = _kernel_log(child, quiet, log, kills.own(), home)
    if kernel_lines:
        texts[KERNEL] = kernel_lines
        facts["oom_pids"] = sorted({event.pid for event in kernel_log.events(kernel_lines.splitlines()) if event.pid})
    if kernel_lines is not None:
        facts["kernel_log_read"] = True
    if counted is not None and _killed(child, quiet, log):
        facts["oom_kills"] = counted
    code = child.code
    name = exit_codes.signal_of_exit(code) if code is not None and code < 0 else None
    return Incident(status, code if code is None or code >= 0 else None, name, texts, "", facts)


def record(run: Path | None) -> dict[str, str]:
    """Return the fact `record`: where the flight record of a run ends; empty where there is none."""
    with guarded(run, "watch: the end of the flight record"):
        position = last_position.position_text(run) if run else ""
        return {"record": position} if position else {}
    return {}


def judge(incident: Incident, home: Path | None = None) -> Verdict:
    """Return the verdict; where judging fails the failure is still told, without causes and with the reason."""
    try:
        from ocrlab.debug.diagnosis.classify import classify

        verdict = classify(incident)
        if not isinstance(verdict, Verdict):
            raise TypeError(f"classify returned {type(verdict).__name__}")
        return verdict
    except Exception as error:
        append_own_error(home, "watch: the diagnosis", error)
        reason = f"the diagnosis itself failed: {type(error).__name__}: {error}"
        return Verdict(None, incident.status, incident.exit_code, incident.signal, None, missing=[reason])


def write(place: Path, verdict: Verdict, incident: Incident) -> None:
    """Write the verdict and the texts it rests on into `incident/`; raises OSError."""
    try:
        from ocrlab.debug.diagnosis.verdict_files import write_verdict as written

        written(place, verdict, incident)
    except OSError:
        raise
    except Exception as error:  # the words may fail, the verdict and its evidence must not
        append_own_error(place.parent, "watch: the words of the verdict", error)
        for name, text in incident.texts.items():
            run_folder.write_text(place / name, clean(text))
        run_folder.write_json(place / "verdict.json", clean(to_json(verdict)))
        run_folder.write_text(place / "verdict.md", clean(f"# {outline(verdict)}\n\n{type(error).__name__}: {error}\n"))


def outline(verdict: Verdict, place: Path | None = None) -> str:
    """Return the verdict in one line; with `place`, where its files are, for the end of the output that it is about."""
    if not verdict.causes:
        return _unknown(verdict, place)
    best = verdict.causes[0]
    sure = f"{best.id}, {100 * best.confidence:.0f} % sure"
    busy = next((line.text for line in best.evidence if line.text.startswith("busy ")), "")
    return f"{busy} ({sure})" if busy else sure


def _unknown(verdict: Verdict, place: Path | None = None) -> str:
    """Return what is said where no cause is known: the error of the program itself, or what would tell more."""
    home = place.parent if place else None
    with guarded(home, "watch: the error of the program itself"):
        from ocrlab.debug.diagnosis import next_steps

        own = next_steps.own_error(verdict)
        if own:
            own_lines = (next_steps.OWN, rank_of(verdict, home) or next_steps.OWN)
            more = [thing for thing in verdict.missing if not thing.startswith(own_lines)]
            return "; ".join([f"the program's own error, {_above(own, place)}", *more])
    return f"unknown (missing: {'; '.join(verdict.missing)})" if verdict.missing else "unknown"


def _above(own: str, place: Path | None) -> str:
    """Return the program's own error, without its words where they are a sentence of ocrlab that was its last line."""
    lines = []
    with contextlib.suppress(OSError):  # on a full disk there is none
        lines = (place / LOG).read_text(encoding="utf-8", errors="replace").splitlines() if place else []
    last = lines[-1].strip() if lines else ""
    quoted = f"`{last.removeprefix('ocrlab: ')}`"
    return (
        f"as it says above{own.removeprefix(quoted)}" if last.startswith("ocrlab: ") and own.startswith(quoted) else own
    )


def summary(what: str, verdict: Verdict, place: Path, folder: Path | None = None) -> str:
    """Return what a person is told at the end: what happened, why, where the verdict is, what to do next.

    `folder` is that of the program's flight record, where that is not the run folder.
    """
    rank = rank_of(verdict, place.parent)
    lines = [
        f"ocrlab watch: {what}",
        *([f"  rank     {rank}"] if rank else []),
        f"  cause    {outline(verdict, place)}",
    ]
    best = verdict.causes[0] if verdict.causes else None
    evidence = [line for line in best.evidence if line.text != rank] if best else []
    evidence = [line for line in evidence if line.text not in lines[-1]]
    if best and evidence:
        shown = evidence[0]
        where = shown.file if shown.line is None else f"{shown.file}:{shown.line}"
        lines.append(f"  evidence {where}: {shown.text.strip()[:LONGEST]}")
        own = _own(best, place.parent)
        lines += [f"  in       {own}"] if own else []
    run = find_recorded(place.parent, folder)
    ends = record(run).get("record", "")
    lines += [f"  record   {ends.removeprefix('the record ')}"] if ends else []
    hid = error_hook.hid(place)
    lines += [f"  hidden   {hid}"] if hid else []
    if (place / "verdict.md").is_file():  # on a full disk there is none
        lines.append(f"  verdict  {short(place / 'verdict.md')}")
    if best and (best.fix or best.experiment):
        sure = best.confidence >= SURE
        lines.append(f"  next     {(best.fix if sure else best.experiment) or best.fix or best.experiment}")
    lines += [f"  replay   ocrlab replay {shlex.quote(short(run))}"] if run else []
    return clean("\n".join(lines))


def rank_of(verdict: Verdict, home: Path | None = None) -> str:
    """Return what is said of the rank to look at; empty where there is only one."""
    with guarded(home, "watch: the rank to look at"):
        from ocrlab.debug.diagnosis.first_failed_rank import rank_sentence

        return rank_sentence(verdict)
    return ""


def _own(best: Cause, home: Path) -> str:
    """Return the module that was called, and the program's own frame, where the evidence shows them; else nothing."""
    with guarded(home, "watch: the program's own frame"):
        from ocrlab.debug.diagnosis import failure_place
        from ocrlab.debug.diagnosis.failure_place import own_frame

        texts = [line.text for line in best.evidence]
        module = next(filter(None, map(failure_place.module_text, texts)), "")
        own = next(filter(None, map(own_frame, texts)), "")
        return f"{module}, called from {own}" if module and own else module or own
    return ""


def _facts(child: Child, quiet: HangDetector, ended_by: str | None) -> dict[str, Any]:
    from ocrlab.hardware import host, nvidia_driver  # slow to import, and only a failure needs it

    now = time.monotonic()
    facts: dict[str, Any] = {
        "main_pid": child.pid,
        "pids": sorted({child.pid, *quiet.roles, *(ended["pid"] for ended in child.exits)}),
        "exits": [{**ended, "role": quiet.roles.get(ended["pid"], ended["role"])} for ended in child.exits],
        "silent_seconds": round((child.ended or now) - quiet.since, 1),
        "run_seconds": round((child.ended or now) - child.started, 1),
        "ended_by": ended_by,
        "memory_peak_bytes": child.peak_bytes,
        "shm_free_bytes": _free(Path("/dev/shm")),
        "disk_free_bytes": host.disk_free("").value,
        "fd_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "memory_limit_bytes": host.memory_bytes().value,
        "platform": "wsl2" if "microsoft" in platform.release().lower() else "linux",
        "gpu": nvidia_driver.present(Path("/")),
        "workers": sum(role == "worker" for role in quiet.roles.values()),
        "cpu_flags": sorted(flag for flag in host.cpu_flags() if flag.startswith(ISA)),
    }
    last = heartbeat.newest(quiet.heartbeats)
    if last:
        facts["heartbeat"] = {**last, "age": round((child.ended or now) - float(last["time"]), 1)}
    return {name: value for name, value in facts.items() if value is not None}


def _hang(
    taken: Sequence[stack_dumps.Stack], facts: Mapping[str, Any], text: str, home: Path | None
) -> dict[str, Any] | None:
    """Return the fact `hang`: what is waited for, in the most probable reading of the stacks."""
    with guarded(home, "watch: the kind of hang"):  # no word on the hang is better than no verdict
        from ocrlab.debug.diagnosis.hangs import hang_cause

        return hang_cause.hang_fact(taken, facts, text)
    return None


def _killed(child: Child, quiet: HangDetector, log: str) -> bool:
    """Tell whether any process of the program may have been killed; else the counters have counted somebody else."""
    living = {process.pid for process in process_tree.descendants(child.pid)}
    gone = [pid for pid, role in quiet.roles.items() if role in ("main", "worker", "rank") and pid not in living]
    by_signal = child.code in (-signal.SIGKILL, 128 + signal.SIGKILL) or "Kill" in log
    return (
        by_signal or any(ended["signal"] == "SIGKILL" for ended in child.exits) or (child.code is None and bool(gone))
    )


def _kernel_log(child: Child, quiet: HangDetector, log: str, groups: Sequence[Path], home: Path | None) -> str | None:
    pids = {child.pid, *quiet.roles, *(int(ended["pid"]) for ended in child.exits)}
    died = child.code is None or child.code < 0 or child.code > EXIT_OF_SIGNAL or "signal" in log or "Kill" in log
    names = quiet.names if died or any(ended["signal"] for ended in child.exits) else ()  # else nobody can be ours
    with guarded(home, "watch: the kernel log"):  # a log that cannot be read is one piece of evidence less
        return kernel_log_filter.lines(child.started, child.ended or time.monotonic(), pids, names, log, groups)
    return None


def _free(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def short(path: Path) -> str:
    """Return a path as it is seen from the working folder."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return os.fspath(path)


REPLAY = re.compile(r"ocrlab replay RUN[^;]*(?:; (?:else )?)?")
OF_REPLAY = re.compile(
    r"the first: it names module, operator and sample, where the run has a flight record; (?:then )?"
)
COMMAND = re.compile(r"\bCOMMAND\b")
LONGEST_COMMAND = 160  # characters of a command that still make a line that can be read


def find_recorded(*runs: Path | None) -> Path | None:
    """Return the first of some run folders that holds a flight record."""
    return next((run for run in runs if run and next(run.glob("flight/ring-*.bin"), None)), None)


def fit_experiments(verdict: Verdict, command: Sequence[str], run: str = "") -> Verdict:
    """Return a verdict whose experiments name the command, and the run to replay; without one no replay is proposed.

    No command, one of several lines and a very long one stay the word COMMAND.
    """
    typed = shlex.join(command)
    typed = typed if 0 < len(typed) <= LONGEST_COMMAND and typed.isprintable() else "COMMAND"

    def fit(experiment: str) -> str:
        if not run:
            experiment = OF_REPLAY.sub("", REPLAY.sub("", experiment))
        return COMMAND.sub(lambda _: typed, experiment.replace("replay RUN", f"replay {shlex.quote(run)}"))

    return replace(verdict, causes=[replace(cause, experiment=fit(cause.experiment)) for cause in verdict.causes])
