"""Of several ranks the one that failed first: its end explains the others', which only lost their connection to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
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


@dataclass(frozen=True)
class Ranks:
    """The records of all ranks, numbered from 1 as the lines of ranks.txt."""

    rows: list[Mapping[str, Any]]

    def failed(self, line: int, how: str, what: str, error: str = "") -> FailedRank:
        """Return the rank of a line, with what became of it and of the others as a sentence."""
        row = self.rows[line - 1]
        why = f"{title(row)} {what}"
        if row.get("step") is not None:
            sample = f", {row['sample']}" if row.get("sample") else ""
            why += f", at step {row['step']} ({row['phase']}{sample})"
        others = [other for other in self.rows if other is not row]
        lost = [str(other["rank"]) for other in others if secondary(_error(other))]
        stopped = [str(other["rank"]) for other in others if (other.get("end") or {}).get("how") == "stopped"]
        if lost:
            why += f"; rank {', '.join(lost)} then lost the connection to it"
        elif stopped and how in ("killed", "failed", "silent"):
            why += f"; rank {', '.join(stopped)} was then stopped"
        number, file = (row["line"], row["file"]) if "file" in row else (line, FILE)
        return FailedRank(int(row["rank"]), how, why, number, row.get("exit_code"), row.get("signal"), error, file)

    def killed(self) -> FailedRank | None:
        """Return the rank that a signal ended, if not the launcher's; one that had failed before is not a victim."""
        for line, row in enumerate(self.rows, 1):
            if row.get("signal") and row["signal"] not in ENDED and not row.get("end"):
                return self.failed(line, "killed", f"was killed by {row['signal']}")
        return None

    def raised(self) -> FailedRank | None:
        """Return the rank whose own error came first, or the one that it is about."""
        errors = [(row["end"]["time"], line, _error(row)) for line, row in enumerate(self.rows, 1) if _error(row)]
        own = [entry for entry in errors if not secondary(entry[2])]
        if not own:
            return None
        _, line, error = min(own, key=lambda entry: entry[:2])
        if error.get("rank") is not None:
            line = next((at for at, row in enumerate(self.rows, 1) if row["rank"] == error["rank"]), line)
        error = _error(self.rows[line - 1]) or error
        message = OURS.sub("", f"{error['type']}: {_line(error['message'])}")
        where = f" at {error['your_code']}" if error.get("your_code") else ""
        return self.failed(line, "failed", f"failed first: {message}", f"`{message}`{where}")

    def silent(self, log: str) -> FailedRank | None:
        """Return a rank that is gone without a record: by the error in its lines, else it ended past every handler."""
        gone = {
            line: row
            for line, row in enumerate(self.rows, 1)
            if not row.get("end") and not row.get("state") and row.get("signal") not in ENDED
        }
        last = _raised(log)
        raised = {line: last[row["rank"]] for line, row in gone.items() if row["rank"] in last}
        own = [line for line, (_, error) in raised.items() if not secondary(error)]
        if own:
            line = min(own, key=lambda line: raised[line][0])
            error = raised[line][1]
            return self.failed(line, "failed", f"failed first: {error['type']}: {_line(error['message'])}")
        if None in last and not secondary(last[None][1]):
            return None  # somebody's, and nobody knows whose
        line = next((line for line in gone if line not in raised), 0)  # the others lost the connection to another one
        if not line:
            return None
        code = gone[line].get("exit_code")
        what = f"ended with exit status {code}, without an error and without the others"
        if code is None:
            what = "died without a word: killed, crashed, or ended by os._exit"
        return self.failed(line, "silent", what)

    def left(self) -> FailedRank | None:
        """Return a rank that ended well while others failed."""
        for line, row in enumerate(self.rows, 1):
            if (row.get("end") or {}).get("how") == "success" and any(map(_error, self.rows)):
                return self.failed(line, "left", "had ended well before the others were done")
        return None

    def hangs(self, hang: Mapping[str, Any]) -> FailedRank | None:
        """Return the rank that keeps the others from going on, by where the stacks show it."""
        states = [row.get("state") for row in self.rows]
        stopped = [line for line, state in enumerate(states, 1) if state in ("T", "t")]
        gone = [line for line, state in enumerate(states, 1) if not state]
        shown = [line for line, row in enumerate(self.rows, 1) if hang.get("pid") in row["pids"]]
        if stopped:
            return self.failed(stopped[0], "hangs", "is stopped")
        if gone and len(gone) < len(states):
            return self.failed(gone[0], "left", "is gone, and the others wait for it")
        if shown:
            return self.failed(shown[0], "hangs", f"is the one to look at: {hang.get('why') or 'stands still'}")
        return None


def find_failed_rank(incident: Incident) -> FailedRank | None:
    """Return the rank that failed first, None if there is only one or it is unknown which."""
    rows: list[Mapping[str, Any]] = [row for row in incident.facts.get("ranks") or () if isinstance(row, Mapping)]
    rows = rows or _summed_up(incident)
    if len(rows) < 2 and not any(int(row.get("world") or 1) > 1 for row in rows):
        return None
    ranks = Ranks(rows)
    if incident.status in ("hung", "suspected"):
        return ranks.hangs(incident.facts.get("hang") or {})
    if incident.facts.get("ended_by") in ("user", "outside"):
        return None  # all of them were asked to end
    log = incident.texts.get(rows[0].get("file", LOG), incident.texts.get(LOG, ""))
    killed, silent = ranks.killed(), ranks.silent(log)
    if killed is not None and killed.signal == "SIGABRT":  # also how NCCL's watchdog ends who waits for another rank
        return ranks.raised() or (silent if silent and silent.how == "failed" else killed)
    return killed or ranks.raised() or silent or ranks.left()


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


def _summed_up(incident: Incident) -> list[Mapping[str, Any]]:
    """Return the ranks of torchrun's summary in a pasted log, where the log tells which one the others complain about:
    the only one with an error of its own, else one that crashed or was killed."""
    for name, text in incident.texts.items() if incident.status == "log" else ():
        ended = launcher.torchrun_failures(text)
        for row in ended:
            code = row["exit_code"]
            row |= {
                "signal": exit_codes.signal_of_exit(code) if code < 0 else None,
                "file": name,
                "world": len(ended),
                "pids": [],
            }
        own = [rank for rank, (_, error) in _raised(text).items() if not secondary(error)]
        crashed = any(row["signal"] in CRASHED for row in ended)
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


def _raised(log: str) -> dict[int | None, tuple[int, dict[str, str]]]:
    """Return the last exception in the lines of each rank, with its line; None for lines that nobody has marked."""
    last_errors: dict[int | None, tuple[int, dict[str, str]]] = {}
    for number, line in enumerate(log.split("\n")):
        mark = MARK.match(line)
        error = RAISED.match(MARK.sub("", line[mark.end() :] if mark else line))
        if error and not RELAYED.search(error[0]):
            last_errors[int(mark[1]) if mark else None] = number, {"type": error[1], "message": error[2] or ""}
    return last_errors


def _error(row: Mapping[str, Any]) -> dict[str, Any]:
    end = row.get("end") or {}
    return dict(end.get("error") or {}) if end.get("how") == "failed" else {}


def _line(message: object) -> str:
    return str(message).strip().partition("\n")[0][:300].rstrip(".")
