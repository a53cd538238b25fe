"""Of several ranks the one that failed first: its end explains the others', which only lost their connection to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ocrlab.debug.diagnosis import exit_codes
from ocrlab.debug.diagnosis.evidence import Hit, hit
from ocrlab.debug.diagnosis.final_exception import TOLD
from ocrlab.debug.diagnosis.unknown_cause import NOTHING, OWN
from ocrlab.records import Evidence, Incident, Verdict
from ocrlab.run_folder import torchrun_summary
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
TOLD_TO_END = ("SystemExit", "KeyboardInterrupt")  # and what that raises in them
DESYNC = "dist.timeout_desync"
VANISHED = ("host.oom_kill", "native.segv", "ext.signal")  # what ends a process past all that it would say
SAID = re.compile(r"rank \d+(?: of \d+)? \(process \d+\) ")
OURS = re.compile(r"^ocrlab\.errors\.\w+: ")  # their message says it all
CRASHED = ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")  # no collective that timed out does this to its process


@dataclass(frozen=True)
class First:
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
        """The line that tells of it."""
        return Evidence(self.file, self.line, self.why)

    @property
    def vanished(self) -> bool:
        """Whether it is gone and nobody knows how: no error, no exit code."""
        return self.how == "silent" and self.exit_code is None


def first(incident: Incident) -> First | None:
    """Return the rank that failed first, None where there is only one or where it cannot be told."""
    rows: list[Mapping[str, Any]] = [one for one in incident.facts.get("ranks") or () if isinstance(one, Mapping)]
    rows = rows or _summed_up(incident)
    if len(rows) < 2 and not any(int(one.get("world") or 1) > 1 for one in rows):
        return None
    if incident.status in ("hung", "suspected"):
        return _standing(rows, incident)
    if incident.facts.get("ended_by") in ("user", "outside"):
        return None  # all of them were told to end
    log = incident.texts.get(rows[0].get("file", LOG), incident.texts.get(LOG, ""))
    killed, silent = _killed(rows), _silent(rows, log)
    if killed is not None and killed.signal == "SIGABRT":  # also how NCCL's watchdog ends who waits for another rank
        return _failed(rows) or (silent if silent and silent.how == "failed" else killed)
    return killed or _failed(rows) or silent or _left(rows)


def of_it(incident: Incident, one: First) -> Incident:
    """Return the incident as that of this rank alone: its exit, and of the log and the table only its own lines.

    Lines of others stay as empty lines, so that numbers are those of the file.
    """
    if one.how not in ("killed", "failed", "silent"):
        return incident
    texts = dict(incident.texts)
    log = one.file if one.file in texts and one.file != FILE else LOG
    if log in texts:
        texts[log] = own_lines(texts[log], one.rank)
    if one.rank != 0 and _is_secondary(texts.get(TRACEBACK, "")):
        del texts[TRACEBACK]
    if FILE in texts:  # how the launcher ended the others is no cause
        rows = texts[FILE].split("\n")
        texts[FILE] = "\n".join(row if number == one.line else "" for number, row in enumerate(rows, 1))
    facts = {**incident.facts, "ended_by": None} if one.how == "killed" else incident.facts
    status = "killed" if one.signal and incident.status != "log" else incident.status
    code = None if one.signal else (one.exit_code if one.exit_code is not None else incident.exit_code)
    return replace(incident, status=status, exit_code=code, signal=one.signal, texts=texts, facts=facts)


def own_lines(log: str, rank: int) -> str:
    """Return the lines of one rank: those that are marked as its own, else those that may be; the launcher's are none.

    Where no rank's lines are marked it is all but what another one says of its own end. torchrun marks what others than
    rank 0 print, if it was asked to; torch marks tracebacks alone, so that a line without a mark may be anybody's.
    """
    lines = log.split("\n")
    if not any(MARK.match(line) for line in lines):
        return "\n".join("" if _of_another(line, rank) else line for line in lines)
    kept, nobodys, launcher = [], [], False
    for line in lines:
        mark = MARK.match(line)
        launcher = launcher or (mark is None and LAUNCHER.search(line) is not None)
        mine = int(mark[1]) == rank if mark else rank == 0 and not launcher
        kept.append(MARK.sub("", line) if mine else "")
        nobodys.append("" if mark or launcher else line)
    return "\n".join(kept if any(kept) else nobodys)


def _summed_up(incident: Incident) -> list[Mapping[str, Any]]:
    """Return the ranks of torchrun's summary in a pasted log, where the log tells which one the others complain about:
    the only one with an error of its own, else one that crashed or was killed."""
    for name, text in incident.texts.items() if incident.status == "log" else ():
        ended = torchrun_summary.failures(text)
        for one in ended:
            code = one["exit_code"]
            one |= {
                "signal": exit_codes.name(code) if code < 0 else None,
                "file": name,
                "world": len(ended),
                "pids": [],
            }
        own = [rank for rank, (_, error) in _raised(text).items() if not secondary(error)]
        crashed = any(one["signal"] in CRASHED for one in ended)
        if (crashed and not own) or (not crashed and len(own) == 1 and own[0] in [one["rank"] for one in ended]):
            return list(ended)
    return []


def _is_secondary(traceback: str) -> bool:
    """Tell whether a traceback ends with the words of a rank that has only lost its connection to another one."""
    raised = [found for line in traceback.splitlines() if (found := RAISED.match(line))]
    own = [found for found in raised if found[1] not in TOLD_TO_END]
    return bool(raised) and (not own or secondary({"type": own[-1][1], "message": own[-1][2] or ""}))


def _of_another(line: str, rank: int) -> bool:
    said = LOST.match(line)
    return (said is not None and int(said[1]) != rank) or LAUNCHER.search(line) is not None


def hits(one: First | None) -> list[Hit]:
    """Return what the ranks alone tell: one that went its own way."""
    if one is None or one.how not in ("left", "silent"):
        return []
    if one.vanished:  # that the others missed it in a collective says nothing of why
        return [hit(cause, "possible", one.evidence, one.why) for cause in VANISHED]
    return [Hit(DESYNC, 0.85, 0.9, "strong", one.evidence, one.why)]


def said(verdict: Verdict) -> str:
    """Return what a verdict tells of the rank to look at; empty where there is only one."""
    lines = [one.text for one in verdict.causes[0].evidence[:1]] if verdict.causes else verdict.missing[:1]
    return next((line for line in lines if SAID.match(line)), "")


def named(verdict: Verdict, one: First | None, incident: Incident) -> Verdict:
    """Return the verdict with the rank in its first line of evidence, or in what is known where no cause is."""
    if one is None:
        return verdict
    numbers = {pid: row["rank"] for row in incident.facts.get("ranks") or () for pid in (row["pid"], *row["pids"])}

    def with_rank(text: str) -> str:
        return re.sub(r"\b(?:process|rank) (\d+)", lambda found: _said(found, numbers), text)

    if one.vanished:
        asks = f"how rank {one.rank} ended: what its launcher has printed tells the signal or the exit code"
        verdict = replace(verdict, missing=[f"{asks} (`ocrlab watch -- torchrun ...` keeps it)", *verdict.missing])
    if not verdict.causes:
        told = [thing for thing in verdict.missing if not (one.error and thing.startswith(NOTHING))]
        own = [OWN + one.error] if len(told) < len(verdict.missing) else []
        if one.error:  # it has said itself how it ended
            told = [thing for thing in told if not thing.startswith(("the exit code", "kernel log"))]
        return replace(verdict, missing=[one.why, *own, *told])
    best = verdict.causes[0]
    lines = [replace(item, text=with_rank(item.text)) if item.line is None else item for item in best.evidence]
    rest = [item for item in lines if item.text != with_rank(one.why)]
    best = replace(best, evidence=[one.evidence, *rest])
    return replace(verdict, causes=[best, *verdict.causes[1:]])


def _said(found: re.Match[str], numbers: Mapping[int, int]) -> str:
    rank = numbers.get(int(found[1]))
    return found[0] if rank is None else f"rank {rank} (process {found[1]})"


def _killed(rows: list[Mapping[str, Any]]) -> First | None:
    """Return the rank that a signal ended, if not the launcher's; one that had failed before is no victim."""
    for at, one in enumerate(rows, 1):
        if one.get("signal") and one["signal"] not in ENDED and not one.get("end"):
            return _found(one, at, "killed", f"was killed by {one['signal']}", rows)
    return None


def _failed(rows: list[Mapping[str, Any]]) -> First | None:
    """Return the rank whose own error came first, or the one that it is about."""
    ends = [(one["end"]["time"], at, one) for at, one in enumerate(rows, 1) if _error(one)]
    own = [end for end in ends if not secondary(_error(end[2]))]
    if not own:
        return None
    _, at, one = min(own, key=lambda end: (end[0], end[1]))
    about = _error(one).get("rank")
    for place, other in enumerate(rows, 1):
        if about is not None and other["rank"] == about:
            at, one = place, other
    error = _error(one) or _error(min(own)[2])
    said = OURS.sub("", f"{error['type']}: {_line(error['message'])}")
    where = f" at {error['your_code']}" if error.get("your_code") else ""
    return replace(_found(one, at, "failed", f"failed first: {said}", rows), error=f"`{said}`{where}")


def _silent(rows: list[Mapping[str, Any]], log: str) -> First | None:
    """Return a rank that is gone without a record: by the error in its lines, else it ended past every handler."""
    gone = [
        (at, one)
        for at, one in enumerate(rows, 1)
        if not one.get("end") and not one.get("state") and one.get("signal") not in ENDED
    ]
    said = _raised(log)
    raised = {at: said[one["rank"]] for at, one in gone if one["rank"] in said}
    own = [at for at, (_, error) in raised.items() if not secondary(error)]
    if own:
        at = min(own, key=lambda at: raised[at][0])
        one, error = rows[at - 1], raised[at][1]
        return _found(one, at, "failed", f"failed first: {error['type']}: {_line(error['message'])}", rows)
    if None in said and not secondary(said[None][1]):
        return None  # somebody's, and nobody knows whose
    for at, one in gone:
        if at in raised:
            continue  # it has lost the connection to another one
        code = one.get("exit_code")
        how = "died without a word: killed, crashed, or ended by os._exit"
        if code is not None:
            how = f"ended with exit status {code}, without an error and without the others"
        return _found(one, at, "silent", how, rows)
    return None


def _raised(log: str) -> dict[int | None, tuple[int, dict[str, str]]]:
    """Return the last exception in the lines of each rank, with its line; None for lines that nobody has marked."""
    found: dict[int | None, tuple[int, dict[str, str]]] = {}
    for number, line in enumerate(log.split("\n")):
        mark = MARK.match(line)
        error = RAISED.match(MARK.sub("", line[mark.end() :] if mark else line))
        if error and not TOLD.search(error[0]):
            found[int(mark[1]) if mark else None] = number, {"type": error[1], "message": error[2] or ""}
    return found


def _left(rows: list[Mapping[str, Any]]) -> First | None:
    """Return a rank that ended well while others failed."""
    if not any(_error(one) for one in rows):
        return None
    for at, one in enumerate(rows, 1):
        if (one.get("end") or {}).get("how") == "success":
            return _found(one, at, "left", "had ended well before the others were done", rows)
    return None


def _standing(rows: list[Mapping[str, Any]], incident: Incident) -> First | None:
    """Return the rank that keeps the others from going on, by where the stacks show it."""
    stopped = [(at, one) for at, one in enumerate(rows, 1) if one.get("state") in ("T", "t")]
    if stopped:
        at, one = stopped[0]
        return _found(one, at, "hangs", "is stopped", rows)
    gone = [(at, one) for at, one in enumerate(rows, 1) if not one.get("state")]
    if gone and len(gone) < len(rows):
        at, one = gone[0]
        return _found(one, at, "left", "is gone, and the others wait for it", rows)
    hang = incident.facts.get("hang") or {}
    for at, one in enumerate(rows, 1):
        if hang.get("pid") in one["pids"]:
            why = str(hang.get("why") or "stands still")
            return _found(one, at, "hangs", f"is the one to look at: {why}", rows)
    return None


def _error(one: Mapping[str, Any]) -> dict[str, Any]:
    end = one.get("end") or {}
    return dict(end.get("error") or {}) if end.get("how") == "failed" else {}


def _found(one: Mapping[str, Any], at: int, how: str, what: str, rows: list[Mapping[str, Any]]) -> First:
    place = ""
    if one.get("step") is not None:
        sample = f", {one['sample']}" if one.get("sample") else ""
        place = f", at step {one['step']} ({one['phase']}{sample})"
    why = f"{title(one)} {what}{place}"
    lost = [other for other in rows if other is not one and secondary(_error(other))]
    if lost:
        why += f"; rank {', '.join(str(other['rank']) for other in lost)} then lost the connection to it"
    told = [other for other in rows if other is not one and (other.get("end") or {}).get("how") == "stopped"]
    if told and not lost and how in ("killed", "failed", "silent"):
        why += f"; rank {', '.join(str(other['rank']) for other in told)} was then told to stop"
    line, file = (one["line"], one["file"]) if "file" in one else (at, FILE)
    return First(int(one["rank"]), how, why, line, one.get("exit_code"), one.get("signal"), file=file)


def _line(message: object) -> str:
    return str(message).strip().partition("\n")[0][:300].rstrip(".")
