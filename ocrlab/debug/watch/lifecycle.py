"""What becomes of a watched program: suspicion, hang, time limit, end, and the report of each.

`tick` decides while it runs, `finish` when it has ended. Both explain a failure in the same three steps:
`incident_evidence.gather` collects the evidence, `incident.judge` makes the verdict, `incident.write` `verdict.md`.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from ocrlab import run_folder
from ocrlab.debug.flight_record import training_findings
from ocrlab.debug.watch import clean_exit_hints, error_hook, incident, incident_evidence, incident_folder
from ocrlab.debug.watch.child_process import CommandRefused
from ocrlab.debug.watch.io_loop import LINGER, OBEYED, STOPPING, Session
from ocrlab.debug.watch.memory_tracker import OomKillCounters
from ocrlab.errors import RunError
from ocrlab.hardware.processes import exit_codes, process_tree
from ocrlab.records import Incident, Verdict
from ocrlab.run_folder import watcher_link

HUNG = 124  # exit status of a program that was ended because it hung, as `timeout` has it
LOST = 1  # exit status of a successful program whose output could not be written
WRONG_USE = 2  # exit status of a command that was called with the wrong words
EVEN = 0.5  # of a verdict on a hang: below it the program may as well be slow
STILL = 5.0  # seconds without progress after which the stacks of a program are taken before it is stopped,
SLOWER = 3  # and so many times the longest time between two of its heartbeats
STOPS, MOST_STOPS = 10.0, 120.0  # seconds in which a training that was asked to stop moves; more where it is slow
TICK = 0.1  # seconds between two looks at the clock while something is about to happen
FAMILY = (0.15, 4.0, 30.0)  # seconds, factor, seconds: first list of the program's processes, the next, at most


@dataclass(frozen=True)
class Options:
    """How to watch. Seconds of `silence` make a hang, `timeout` is the limit for the whole run.

    `run_dir` None makes `runs/<time>-<program>`; with `own_folder` the program makes its own, as `ocrlab train` does.
    If it ends before it has made one, a folder for its verdict is made below `runs`.
    With `inside` each Python of the program reports errors that it hides: see `injected_error_hook.py`.
    With `record` a Python script runs with the flight recorder in it, where its model, optimizer and loop are clear.
    `on_hang` kill ends a program that hangs, report lets it go on; None ends it only where a heartbeat has stopped.
    """

    run_dir: Path | None = None
    silence: float = 300.0
    timeout: float | None = None
    debug_cuda: bool = False
    on_hang: str | None = None
    own_folder: bool = False
    runs: Path = Path(incident_folder.RUNS)
    inside: bool = True
    record: bool = False


@dataclass(frozen=True)
class Ended:
    """How a program ended: `status` success, failed, killed or hung; its exit code or signal; the verdict if it failed.

    `folder` is the run folder, None where a program that makes its own made none: wrongly used, or stopped before it
    began. `exit_status` is what a shell gets: the exit code, 128 + n after signal n, 124 after a hang that
    was ended, 1 after a success whose output could not be written.
    """

    status: str
    exit_code: int | None
    signal: str | None
    verdict: Verdict | None
    folder: Path | None
    exit_status: int


@dataclass
class WatchedRun:
    """One watched program and what is known and written of it so far."""

    command: list[str]
    options: Options
    session: Session
    scratch: Path
    folder: run_folder.RunFolder | None
    kills: OomKillCounters = field(default_factory=OomKillCounters)
    suspected: Path | None = None  # the incident folder of a suspicion
    silent_since: float = 0.0  # when the silence began that was reported
    stacks: dict[str, str] = field(default_factory=dict)  # of that silence, while it lasts
    still: float = 0.0  # seconds for which nothing had moved when it was asked to stop
    verdict: Verdict | None = None
    hung: bool = False  # we ended it because it hung
    refused_signal: int = 0  # it hung after this signal, which should have stopped it
    listing: float = FAMILY[0]  # seconds after the start when its processes are listed next

    def wait(self, now: float) -> float:
        """Return how many seconds may pass until `tick` has something to do."""
        child = self.session.child
        if child.code is not None or self.session.ending is not None:
            return TICK / 2
        left = [self.session.quiet.wait(now), self.session.memory.wait(now - child.started)]
        if self.options.timeout is not None:
            left.append(child.started + self.options.timeout - now)
        return max(0.01, min(left))

    def tick(self, now: float) -> None:
        """Do what the clock asks for: look for progress, report a hang, end what is over its time."""
        session, child, quiet, timeout = self.session, self.session.child, self.session.quiet, self.options.timeout
        if child.code is not None or session.ending is not None:
            lingering = child.code == 0 and session.ending is None
            if not lingering or now - (child.ended or now) > LINGER:
                session.end(now)
            return
        if now - child.started >= self.listing:
            self.listing = min(self.listing * FAMILY[1], self.listing + FAMILY[2])
            family = process_tree.descendants(child.pid)
            quiet.meet(family)
            for process in family:
                self.kills.note(process.pid)
        session.memory.look(now - child.started, child.pid)
        quiet.look(now, child.pid)
        if self.suspected and self._has_moved():
            self._withdraw_suspicion()
        if timeout is not None and now - child.started >= timeout:
            self._end(f"time limit of {timeout:g} s reached", now)
        elif self._ignores_stop(now):
            self.refused_signal, asked_at = session.asked
            name = signal.Signals(self.refused_signal).name
            self._end(f"no progress in the {now - asked_at:.0f} s since {name}", now)
        elif quiet.hangs(now) and not self.suspected and not session.waits_for_keys:
            what = f"no progress for {now - quiet.since:.0f} s"
            if self.options.on_hang == "kill" or (quiet.has_heartbeat and self.options.on_hang is None):
                self._end(what, now)
                return
            self.silent_since = quiet.since
            self.verdict, self.suspected = self._explain("hung" if quiet.has_heartbeat else "suspected")
            self._write_summary(f"{what}; the program continues", self.verdict, self.suspected)

    def before_stop(self) -> None:
        """Take the stacks of a program that has stood still, before it gets a signal: afterwards nobody can."""
        quiet, now = self.session.quiet, time.monotonic()
        seconds = now - quiet.since
        if self.still or self.suspected or self.hung or seconds < max(STILL, SLOWER * quiet.longest):
            return
        if self.session.child.code is not None or self.session.waits_for_keys:
            return
        self.still, self.silent_since = seconds, quiet.since
        home = self._home().path if not self.options.own_folder else None
        case = incident_evidence.gather(self.session, self.kills, self.scratch, "suspected", None, home)
        self.stacks = {name: text for name, text in case.texts.items() if name == incident_evidence.STACKS}
        verdict = incident.judge(case, home)
        best = verdict.causes[0] if verdict.causes else None
        if home and best and best.confidence >= EVEN and best.id == (case.facts.get("hang") or {}).get("id"):
            self.verdict, self.suspected = verdict, self._write(self._home(), verdict, case)

    def refused(self, refused: CommandRefused) -> Ended:
        """Write down that the command could not be executed at all."""
        self.session.write_message(f"ocrlab watch: {refused}")
        verdict = None
        if self.folder:
            case = Incident("failed", refused.status, texts={incident_evidence.LOG: f"{refused}\n"})
            verdict = incident.judge(case, self.folder.path)
            self._write(self.folder, verdict, case)
            error = {"type": "Refused", "message": str(refused), "where": None}
            self.folder.fail(error, verdict=cause(verdict))
        return Ended("failed", refused.status, None, verdict, self.path, refused.status)

    def finish(self) -> Ended:
        """Write the last report on a program that has ended."""
        session, child = self.session, self.session.child
        code = child.code if child.code is not None else -signal.SIGKILL
        name = exit_codes.signal_name(-code) if code < 0 else None
        exit_status = HUNG if self.hung else 128 - code if code < 0 else code
        if self.refused_signal:
            exit_status = 128 + self.refused_signal
        stayed = self._hung_until_ended()
        if self.suspected and not (self.hung or stayed):
            self._withdraw_suspicion()
        if session.lost:
            session.write_message(f"ocrlab watch: {session.lost}")
            session.ring.add(0, f"{session.lost}\n".encode())
        if code == 0 and not self.hung:
            return self._did_well(LOST if session.lost else 0)
        status = "hung" if self.hung else "killed" if name else "failed"
        if self.folder is None and code == WRONG_USE and not watcher_link.read_runs(self.scratch):
            return Ended(status, code, None, None, None, code)  # its own message is on the screen, and it made nothing
        what = f"was killed by {name}" if name else f"ended with exit status {code}"
        what = f"{Path(self.command[0]).name} {what} after {(child.ended or time.monotonic()) - child.started:.1f} s"
        what += " (its guard was killed)" if child.guard_lost else ""
        exit_code = code if code >= 0 else None
        if self._stopped_early():
            session.write_message(f"ocrlab watch: {what}, before it had a run folder")
            return Ended(status, exit_code, name, None, None, exit_status)
        waited = stayed or (self.still if session.ended_by else 0.0)
        what += f", asked to end after {waited:.0f} s without progress" if waited else ""
        if not self.hung:  # else its report is written
            place = self.suspected
            if not stayed or place is None or self.verdict is None:
                self.verdict, place = self._explain(status)
            self._write_summary(what, self.verdict, place)
        folder = self._home()
        self._mark_failed(folder.path, status, f"{status} by {name}" if name else f"{status}, exit status {child.code}")
        return Ended(status, exit_code, name, self.verdict, folder.path, exit_status)

    def _did_well(self, exit_status: int) -> Ended:
        """Report what tells against exit status 0 in the output, and whether the training came to its end."""
        session, log, path = self.session, self.session.ring.text(), self.path
        swallowed = error_hook.swallowed(error_hook.read(self.scratch, path), path)
        hints = clean_exit_hints.traceback(log), clean_exit_hints.loss(log), swallowed
        for hint in filter(None, hints):
            session.write_message(f"ocrlab watch: {hint}")
        record = watcher_link.read_record(self.scratch)
        if record is not None and training_findings.ended_early(record):
            why = (training_findings.read(record) or ["the training did not end"])[0]
            session.write_message(f"ocrlab watch: exit status 0, and yet {why}; the run counts as failed")
            if self.folder:
                self.folder.fail({"type": "Unfinished", "message": why, "where": None})
            return Ended("failed", 0, None, None, path, exit_status)
        if self.folder:
            try:
                self.folder.succeed({})
            except RunError as error:  # the program succeeded, whatever becomes of our folder
                session.write_message(f"ocrlab watch: {error}")
        return Ended("success", 0, None, None, path, exit_status)

    def _hung_until_ended(self) -> float:
        """Return for how many seconds nothing had moved when a person ended what hung by the verdict, else 0.

        The report of the hang then stays, however sure it is: it explains more than the signal does.
        """
        causes = self.verdict.causes if self.verdict and self.suspected and not self.hung else []
        if not causes or self._has_moved() or not self.session.ended_by:
            return 0.0
        return self.session.asked[1] - self.silent_since

    def _stopped_early(self) -> bool:
        """Return whether a program that makes its own folder was stopped before it had one: nothing has failed."""
        number = self.session.asked[0]
        has_folder = self.folder or watcher_link.read_run(self.scratch)
        return bool(number and not has_folder and self.session.child.code in (-number, 128 + number))

    def _ignores_stop(self, now: float) -> bool:
        """Return whether an `ocrlab train` was asked to stop and has not moved since: it stops fast where it can."""
        quiet, (number, when) = self.session.quiet, self.session.asked
        if not self.options.own_folder or number not in STOPPING or quiet.stops or not quiet.has_heartbeat:
            return False
        return now - max(when, quiet.since) > min(max(STOPS, 3 * quiet.longest), MOST_STOPS)

    def _end(self, why: str, now: float) -> None:
        """Write down where the program hangs, then end it."""
        self.hung = True
        self.verdict, place = self._explain("hung")
        best = self.verdict.causes[0].confidence if self.verdict.causes else 0.0
        unsure = self.options.on_hang == "kill" and not self.session.quiet.has_heartbeat and best < EVEN
        reservation = ", as --on-hang kill asks, though it may only be slow" if unsure else ""
        self._write_summary(f"{why}; terminating the program{reservation}", self.verdict, place)
        self.session.end(now)

    def _has_moved(self) -> bool:
        """Return whether what was silent has moved by itself; output after a signal that ends it does not count."""
        since, (number, when) = self.session.quiet.since, self.session.asked
        return since > self.silent_since and not (number and 0 <= since - when < OBEYED)

    def _withdraw_suspicion(self) -> None:
        quiet = self.session.quiet
        what = "it continued to its end" if self.session.child.code == 0 else "it has ended"
        if self._has_moved():
            self.stacks = {}
            what = f"it moves again ({quiet.what}) after {quiet.since - self.silent_since:.0f} s"
        if self.suspected:
            shutil.rmtree(self.suspected, ignore_errors=True)
            self.session.write_message(f"ocrlab watch: {what}; the report of its silence is withdrawn")
        self.suspected = self.verdict = None

    def _explain(self, status: str) -> tuple[Verdict, Path]:
        """Write the incident of a failure or a hang; returns the verdict, and the folder of the incident."""
        folder, record = self._home(), watcher_link.read_record(self.scratch)
        recorded = incident.find_recorded(folder.path, record)
        by = "limit" if self.hung else self.session.ended_by
        case = incident_evidence.gather(self.session, self.kills, self.scratch, status, by, folder.path, recorded)
        case = replace(case, texts={**self.stacks, **case.texts})  # where it hung tells why it was ended
        self.stacks = {name: text for name, text in case.texts.items() if name == incident_evidence.STACKS}
        ours = self.options.own_folder or self.session.output is not None  # a command that no person has typed
        verdict = incident.fit_experiments(
            incident.judge(case, folder.path),
            () if ours else self.command,
            incident.short(recorded) if recorded else "",
        )
        return verdict, self._write(folder, verdict, case)

    def _write_summary(self, what: str, verdict: Verdict, place: Path) -> None:
        record = watcher_link.read_record(self.scratch)
        self.session.write_message(incident.summary(what, verdict, place, record, self.command))

    def _write(self, folder: run_folder.RunFolder, verdict: Verdict, case: Incident) -> Path:
        """Write an incident into the run folder, or elsewhere where that cannot be written; returns where."""
        home = folder.path
        try:
            again = self.suspected and self.suspected.is_dir()
            place = self.suspected if self.suspected and again else incident_folder.new_incident(home)
            incident.write(place, verdict, case)
            return place
        except OSError as error:
            problem = error
        try:
            spare = incident_folder.spare(self.command)
            place = incident_folder.new_incident(spare.path)
            incident.write(place, verdict, case)
            spare.fail({"type": "Elsewhere", "message": f"of {home}", "where": None}, verdict=cause(verdict))
        except (OSError, RunError):  # no disk has space: exit status and a few lines are still reported
            text = f"neither {home} nor {tempfile.gettempdir()} can be written ({problem})"
            place = home / incident_folder.INCIDENT
        else:
            text = f"{home} cannot be written ({problem}); the verdict is elsewhere"
        self.session.write_message(f"ocrlab watch: {text}")
        return place

    def _home(self) -> run_folder.RunFolder:
        """Return the run folder: ours, or the one that the program made, or a new one where it did not get so far."""
        if self.folder is None:
            owner = watcher_link.read_run(self.scratch)
            if owner:
                return run_folder.RunFolder(owner[1], "")
            runs = watcher_link.read_runs(self.scratch) or self.options.runs
            try:
                self.folder = run_folder.create(runs, incident_folder.slug(self.command))
            except RunError:
                self.folder = incident_folder.spare(self.command)
        return self.folder

    @property
    def path(self) -> Path | None:
        """The run folder, where there is one yet."""
        return self.folder.path if self.folder else None

    def _mark_failed(self, path: Path, status: str, message: str) -> None:
        """Write `.FAILURE` into the run folder, and into one that the program made and left without a cause."""
        owner = watcher_link.read_run(self.scratch)
        pid = owner[0] if owner and owner[1] == path else self.session.child.pid
        error = {"type": status.capitalize(), "message": message, "where": None, "pid": pid}
        incident_folder.failed(path, error, cause(self.verdict))
        record = watcher_link.read_record(self.scratch)  # of a script that calls `fit`, whose run folder is its own
        if record is not None and record != path:
            incident_folder.also(record, path / incident_folder.INCIDENT, error, cause(self.verdict))


def cause(verdict: Verdict | None) -> str:
    """Return the id of the most probable cause; `unknown` is one too."""
    return verdict.causes[0].id if verdict and verdict.causes else "unknown"
