"""Of several ranks the one that failed first: its end explains the others', which only lost their connection to it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ocrlab.debug.diagnosis.catalogue import Level
from ocrlab.debug.diagnosis.evidence import Hit
from ocrlab.debug.diagnosis.final_exception import RELAYED
from ocrlab.debug.diagnosis.next_steps import NOTHING, OWN
from ocrlab.hardware.processes import exit_codes
from ocrlab.records import Evidence, Incident, Verdict
from ocrlab.run_folder import launcher
from ocrlab.run_folder.launcher import secondary, title

FILE = "ranks.txt"
LOG = "log_tail.txt"
TRACEBACK = "traceback.txt"  # of whoever wrote the run folder's sentinel: rank 0
MARK = re.compile(r"^\[(?:default|rank)?(\d{1,5})\]: ?")
LAUNCHER = re.compile(
    r"failed \(exitcode: |Sending process \d+ closing signal|\bis receiving \d+ signal\b|^ocrlab: rank \d+ "
)
LOST = re.compile(r"^ocrlab: Rank (\d+) was ended by another one: ")
RAISED = re.compile(r"((?:\w+\.){0,6}[A-Z]\w{0,60}(?:Error|Exception|Exit|Interrupt))(?::\s?(.*))?$")
ENDED = ("SIGTERM", "SIGINT")  # what a launcher ends the others with
STOP_EXCEPTIONS = ("SystemExit", "KeyboardInterrupt")  # and what that raises in them
DESYNC = "dist.timeout_desync"
VANISHED = ("host.oom_kill", "native.segv", "ext.signal")  # what ends a process past all that it would say
RANK_SENTENCE = re.compile(r"rank \d+(?: of \d+)? \(process \d+\) ")
OURS = re.compile(r"^ocrlab\.errors\.\w+: ")  # their message says it all
CRASHED = ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")  # no collective that timed out does this to its process


Row = Mapping[str, Any]  # of ranks.txt, or of what a rank or its launcher has written


@dataclass(frozen=True)
class FailedRank:
    """The rank to look at: `how` is killed, failed, left (it ended well, and too early) or hangs; `why` a sentence."""

    rank: int
    how: str
    why: str
    line: int | None  # of `file`; of a record in JSON there is none
    exit_code: int | None = None
    signal: str | None = None
    error: str = ""  # its own, and where, as its record has it
    file: str = FILE  # or the rank's own record, or a launcher's log, where nobody has watched

    @property
    def evidence(self) -> Evidence:
        """The line that reports it."""
        return Evidence(self.file, self.line, self.why)

    @property
    def vanished(self) -> bool:
        """Whether it is gone and nobody knows how: no error, no exit code."""
        return self.how == "silent" and self.exit_code is None


def find_failed_rank(incident: Incident) -> FailedRank | None:
    """Return the rank that failed first, None if there is only one or it is unknown which."""
    rows: list[Row] = [row for row in incident.facts.get("ranks") or () if isinstance(row, Mapping)]
    rows = rows or _summed_up(incident)
    if len(rows) < 2 and not any(int(row.get("world") or 1) > 1 for row in rows):
        return None
    name = rows[0].get("file", LOG)
    rows = [row if "file" in row else {**row, "file": FILE, "line": line} for line, row in enumerate(rows, 1)]
    if incident.status in ("hung", "suspected"):
        return _hanging(rows, incident.facts.get("hang") or {})
    if incident.facts.get("ended_by") in ("user", "outside"):
        return None  # all of them were asked to end
    killed, silent = _killed(rows), _silent(rows, incident.texts.get(name, incident.texts.get(LOG, "")))
    if killed is not None and killed.signal == "SIGABRT":  # also how NCCL's watchdog ends who waits for another rank
        return _raised_first(rows) or (silent if silent and silent.how == "failed" else killed)
    left = [row for row in rows if _how(row) == "success" and any(map(_error, rows))]
    too_early = "had ended well before the others were done"
    early = _failed(rows, left[0], "left", too_early) if left else None
    return killed or _raised_first(rows) or silent or early


def _failed(rows: Sequence[Row], row: Row, how: str, what: str, error: str = "") -> FailedRank:
    """Return a rank, with what became of it and of the others as a sentence."""
    why = f"{title(row)} {what}"
    if row.get("step") is not None:
        sample = f", {row['sample']}" if row.get("sample") else ""
        why += f", at step {row['step']} ({row['phase']}{sample})"
    others = [other for other in rows if other is not row]
    lost = [str(other["rank"]) for other in others if secondary(_error(other))]
    stopped = [str(other["rank"]) for other in others if _how(other) == "stopped"]
    if lost:
        why += f"; rank {', '.join(lost)} then lost the connection to it"
    elif stopped and how in ("killed", "failed", "silent"):
        why += f"; rank {', '.join(stopped)} was then stopped"
    code, signal = row.get("exit_code"), row.get("signal")
    return FailedRank(int(row["rank"]), how, why, row["line"], code, signal, error, row["file"])


def _killed(rows: Sequence[Row]) -> FailedRank | None:
    """Return the rank that a signal ended, if not the launcher's; one that had failed before is not a victim."""
    for row in rows:
        if row.get("signal") and row["signal"] not in ENDED and not row.get("end"):
            return _failed(rows, row, "killed", f"was killed by {row['signal']}")
    return None


def _raised_first(rows: Sequence[Row]) -> FailedRank | None:
    """Return the rank whose own error came first, or the one that it is about."""
    own = [row for row in rows if _error(row) and not secondary(_error(row))]
    if not own:
        return None
    first = min(own, key=lambda row: row["end"]["time"])
    error = _error(first)
    if error.get("rank") is not None:
        first = next((row for row in rows if row["rank"] == error["rank"]), first)
    error = _error(first) or error
    message = OURS.sub("", f"{error['type']}: {_line(error['message'])}")
    where = f" at {error['your_code']}" if error.get("your_code") else ""
    return _failed(rows, first, "failed", f"failed first: {message}", f"`{message}`{where}")


def _silent(rows: Sequence[Row], log: str) -> FailedRank | None:
    """Return a rank that is gone without a record: by the error in its lines, else it ended past every handler."""
    gone = [row for row in rows if not row.get("end") and not row.get("state") and row.get("signal") not in ENDED]
    last = _last_errors(log)
    own = [row for row in gone if row["rank"] in last and not secondary(last[row["rank"]][1])]
    if own:
        first = min(own, key=lambda row: last[row["rank"]][0])
        error = last[first["rank"]][1]
        return _failed(rows, first, "failed", f"failed first: {error['type']}: {_line(error['message'])}")
    if None in last and not secondary(last[None][1]):
        return None  # somebody's, and nobody knows whose
    for row in gone:
        if row["rank"] not in last:  # the others lost the connection to another one
            code = row.get("exit_code")
            what = f"ended with exit status {code}, without an error and without the others"
            if code is None:
                what = "died without a word: killed, crashed, or ended by os._exit"
            return _failed(rows, row, "silent", what)
    return None


def _hanging(rows: Sequence[Row], hang: Mapping[str, Any]) -> FailedRank | None:
    """Return the rank that keeps the others from going on, by where the stacks show it."""
    stopped = [row for row in rows if row.get("state") in ("T", "t")]
    if stopped:
        return _failed(rows, stopped[0], "hangs", "is stopped")
    gone = [row for row in rows if not row.get("state")]
    if gone and len(gone) < len(rows):
        return _failed(rows, gone[0], "left", "is gone, and the others wait for it")
    shown = [row for row in rows if hang.get("pid") in row["pids"]]
    what = f"is the one to look at: {hang.get('why') or 'stands still'}"
    return _failed(rows, shown[0], "hangs", what) if shown else None


def restrict_to_rank(incident: Incident, failed: FailedRank) -> Incident:
    """Return the incident as that of this rank alone: its exit, and of the log and the table only its own lines.

    Lines of others stay as empty lines, so that numbers are those of the file.
    """
    if failed.how not in ("killed", "failed", "silent"):
        return incident
    texts = dict(incident.texts)
    log = failed.file if failed.file in texts and failed.file != FILE else LOG
    if log in texts:
        texts[log] = own_lines(texts[log], failed.rank)
    if failed.rank != 0 and _is_secondary(texts.get(TRACEBACK, "")):
        del texts[TRACEBACK]
    if FILE in texts:  # how the launcher ended the others is not a cause
        rows = texts[FILE].split("\n")
        texts[FILE] = "\n".join(row if number == failed.line else "" for number, row in enumerate(rows, 1))
    facts = {**incident.facts, "ended_by": None} if failed.how == "killed" else incident.facts
    status = "killed" if failed.signal and incident.status != "log" else incident.status
    code = None if failed.signal else (failed.exit_code if failed.exit_code is not None else incident.exit_code)
    return replace(incident, status=status, exit_code=code, signal=failed.signal, texts=texts, facts=facts)


def own_lines(log: str, rank: int) -> str:
    """Return the lines of one rank: those that are marked as its own, else those that may be; the launcher's are none.

    Where no rank's lines are marked it is all but what another one says of its own end. torchrun marks what others than
    rank 0 print, if it was asked to; torch marks tracebacks alone, so that a line without a mark may be anybody's.
    """
    lines = log.split("\n")
    if not any(MARK.match(line) for line in lines):
        of_others = {at for at, line in enumerate(lines) if (loss := LOST.match(line)) and int(loss[1]) != rank}
        of_others |= {at for at, line in enumerate(lines) if LAUNCHER.search(line)}
        return "\n".join("" if at in of_others else line for at, line in enumerate(lines))
    marked, unmarked, launcher = [], [], False
    for line in lines:
        mark = MARK.match(line)
        launcher = launcher or (mark is None and LAUNCHER.search(line) is not None)
        mine = int(mark[1]) == rank if mark else rank == 0 and not launcher
        marked.append(MARK.sub("", line) if mine else "")
        unmarked.append("" if mark or launcher else line)
    return "\n".join(marked if any(marked) else unmarked)


def _summed_up(incident: Incident) -> list[Row]:
    """Return the ranks of torchrun's summary in a pasted log, where the log tells which one the others complain about:
    the only one with an error of its own, else one that crashed or was killed."""
    for name, text in incident.texts.items() if incident.status == "log" else ():
        failures = launcher.torchrun_failures(text)
        signals = [exit_codes.signal_of_exit(row["exit_code"]) if row["exit_code"] < 0 else None for row in failures]
        more = {"file": name, "world": len(failures), "pids": []}
        ended = [{**row, **more, "signal": signal} for row, signal in zip(failures, signals, strict=True)]
        own = [rank for rank, (_, error) in _last_errors(text).items() if not secondary(error)]
        crashed = not set(signals).isdisjoint(CRASHED)
        if (crashed and not own) or (not crashed and len(own) == 1 and own[0] in [row["rank"] for row in ended]):
            return list(ended)
    return []


def _is_secondary(traceback: str) -> bool:
    """Return whether a traceback ends with the words of a rank that has only lost its connection to another one."""
    raised = [match for line in traceback.splitlines() if (match := RAISED.match(line))]
    own = [match for match in raised if match[1] not in STOP_EXCEPTIONS]
    return bool(raised) and (not own or secondary({"type": own[-1][1], "message": own[-1][2] or ""}))


def rank_hits(failed: FailedRank | None) -> list[Hit]:
    """Return what the ranks alone tell: one that went its own way."""
    if failed is None or failed.how not in ("left", "silent"):
        return []
    if failed.vanished:  # that the others missed it in a collective says nothing of why
        return [Hit(cause, Level.POSSIBLE, failed.evidence, failed.why) for cause in VANISHED]
    return [Hit(DESYNC, Level.STRONG, failed.evidence, failed.why)]


def rank_sentence(verdict: Verdict) -> str:
    """Return what a verdict reports about the rank to look at; empty if there is only one."""
    lines = [item.text for item in verdict.causes[0].evidence[:1]] if verdict.causes else verdict.missing[:1]
    return next((line for line in lines if RANK_SENTENCE.match(line)), "")


def name_rank(verdict: Verdict, failed: FailedRank | None, incident: Incident) -> Verdict:
    """Return the verdict with the rank in its first line of evidence, or in what is known where no cause is."""
    if failed is None:
        return verdict
    numbers = {pid: row["rank"] for row in incident.facts.get("ranks") or () for pid in (row["pid"], *row["pids"])}

    def rank_of(match: re.Match[str]) -> str:
        rank = numbers.get(int(match[1]))
        return match[0] if rank is None else f"rank {rank} (process {match[1]})"

    def with_rank(text: str) -> str:
        return re.sub(r"\b(?:process|rank) (\d+)", rank_of, text)

    if failed.vanished:
        asks = f"how rank {failed.rank} ended: the output of its launcher shows the signal or the exit code"
        verdict = replace(verdict, missing=[f"{asks} (`ocrlab watch -- torchrun ...` keeps it)", *verdict.missing])
    if not verdict.causes:
        missing = [thing for thing in verdict.missing if not (failed.error and thing.startswith(NOTHING))]
        own = [OWN + failed.error] if len(missing) < len(verdict.missing) else []
        if failed.error:  # it has said itself how it ended
            missing = [thing for thing in missing if not thing.startswith(("the exit code", "kernel log"))]
        return replace(verdict, missing=[failed.why, *own, *missing])
    best = verdict.causes[0]
    lines = [replace(item, text=with_rank(item.text)) if item.line is None else item for item in best.evidence]
    rest = [item for item in lines if item.text != with_rank(failed.why)]
    best = replace(best, evidence=[failed.evidence, *rest])
    return replace(verdict, causes=[best, *verdict.causes[1:]])


def _last_errors(log: str) -> dict[int | None, tuple[int, dict[str, str]]]:
    """Return the last exception in the lines of each rank, with its line; None for lines that nobody has marked."""
    last_errors: dict[int | None, tuple[int, dict[str, str]]] = {}
    for number, line in enumerate(log.split("\n")):
        mark = MARK.match(line)
        error = RAISED.match(MARK.sub("", line[mark.end() :] if mark else line))
        if error and not RELAYED.search(error[0]):
            last_errors[int(mark[1]) if mark else None] = number, {"type": error[1], "message": error[2] or ""}
    return last_errors


def _how(row: Row) -> str:
    return str((row.get("end") or {}).get("how", ""))


def _error(row: Row) -> dict[str, Any]:
    return dict(row["end"].get("error") or {}) if _how(row) == "failed" else {}


def _line(message: object) -> str:
    return str(message).strip().partition("\n")[0][:300].rstrip(".")
