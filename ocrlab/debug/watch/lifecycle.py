"""What becomes of a watched program: suspicion, hang, time limit, end, and what is written down of each."""

from __future__ import annotations

import signal
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from ocrlab import run_folder
from ocrlab.debug.flight_record import training_findings
from ocrlab.debug.watch import clean_exit_hints, error_hook, incident, incident_folder, rank_status
from ocrlab.debug.watch.child_process import Child, CommandRefused
from ocrlab.debug.watch.io_loop import LINGER, OBEYED, Session
from ocrlab.debug.watch.memory_tracker import OomKillCounters
from ocrlab.errors import RunError
from ocrlab.hardware.processes import exit_codes, process_tree
from ocrlab.records import Incident, Verdict
from ocrlab.run_folder import watcher_link

HUNG = 124  # exit status of a program that was ended because it hung, as `timeout` has it
ENDED = (128 + signal.SIGTERM, 128 + signal.SIGKILL)  # exit status of a program that we ended
LOST = 1  # exit status of a program that did well, and whose output could not be written
WRONG_USE = 2  # exit status of a command that was called with the wrong words
EVEN = 0.5  # of a verdict on a hang: below it the program may as well be slow
STOPPING = (signal.SIGINT, signal.SIGTERM)
STOPS, MOST_STOPS = 10.0, 120.0  # seconds in which a training that was told to stop moves; more where it is slow
TICK = 0.1  # seconds between two looks at the clock while something is about to happen
FAMILY = (0.15, 4.0, 30.0)  # seconds, factor, seconds: first list of the program's processes, the next, at most


@dataclass(frozen=True)
class Options:
    """How to watch. Seconds of `silence` make a hang, `timeout` is the limit for the whole run.

    `run_dir` None makes `runs/<time>-<program>`; with `own_folder` the program makes its own, as `ocrlab train` does.
    Until it says where, that one is looked for below `runs`.
    With `inside` each Python of the program tells of errors that it hides: see `watch/inside.py`.
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


@dataclass(frozen=True)
class Ended:
    """How a program ended: `status` success, failed, killed or hung; its exit code or signal; the verdict if it failed.

    `folder` is the run folder, None where a program that makes its own made none: wrongly used, or stopped before it
    began. `exit_status` is what a shell gets: the exit code, 128 + n after signal n, 130 where it took more than one
    Ctrl-C, 124 after a hang that was ended, 1 after a success whose output could not be written.
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
    silence: float = 0.0  # when the silence began that was reported
    stuck: dict[str, str] = field(default_factory=dict)  # the stacks of that silence, while it lasts
    verdict: Verdict | None = None
    hung: bool = False  # ended by us because of it
    refused_signal: int = 0  # and what it was told by before
    listing: float = FAMILY[0]  # seconds after the start when its processes are listed next

    def wait(self, now: float) -> float:
        """Return how many seconds may pass until `tick` has something to do."""
        child = self.child
        if child.code is not None or self.session.ending is not None:
            return TICK / 2
        left = [self.session.quiet.wait(now), self.session.memory.wait(now - child.started)]
        if self.options.timeout is not None:
            left.append(child.started + self.options.timeout - now)
        return max(0.01, min(left))

    def tick(self, now: float) -> None:
        """Do what the clock asks for: look for progress, report a hang, end what is over its time."""
        child, quiet = self.child, self.session.quiet
        if child.code is not None or self.session.ending is not None:
            lingering = child.code == 0 and self.session.ending is None
            if not lingering or now - (child.ended or now) > LINGER:
                self.session.end(now)
            return
        self._list_family(now)
        self.session.memory.look(now - child.started, child.pid)
        quiet.look(now, child.pid)
        if self.suspected and self._went_on():
            self._clear()
        if self.options.timeout is not None and now - child.started >= self.options.timeout:
            self._end(f"is over its limit of {self.options.timeout:g} s;", now)
        elif self._stays(now):
            self.refused_signal = self.session.asked[0]
            name = signal.Signals(self.refused_signal).name
            self._end(f"hangs: nothing has moved in the {now - self.session.asked[1]:.0f} s since {name};", now)
        elif quiet.hangs(now) and not self.suspected and not self._asked():
            self._hangs(now)

    def refused(self, refused: CommandRefused) -> Ended:
        """Write down that the command could not be executed at all."""
        self.session.write_message(f"ocrlab watch: {refused}")
        if self.folder is None:
            return Ended("failed", refused.status, None, None, None, refused.status)
        error = {"type": "Refused", "message": str(refused), "where": None}
        status = Incident("failed", refused.status, texts={incident.LOG: f"{refused}\n"})
        verdict = incident.judge(status, self.folder.path)
        self._write(self.folder, verdict, status)
        self.folder.fail(error, verdict=cause(verdict))
        return Ended("failed", refused.status, None, verdict, self.folder.path, refused.status)

    def broke(self, error: BaseException) -> None:
        """Write down that watching itself failed; the program is ended with it."""
        if self.folder:
            self.folder.fail(error)

    def finish(self) -> Ended:
        """Write the last word on a program that has ended."""
        child = self.child
        code = child.code if child.code is not None else -signal.SIGKILL
        name = exit_codes.signal_name(-code) if code < 0 else None
        exit_status = HUNG if self.hung else 128 - code if code < 0 else code
        if self.refused_signal:
            exit_status = 128 + self.refused_signal
        if self.session.insisted and exit_status in ENDED:
            exit_status = 128 + signal.SIGINT
        stayed = self._hung_to_its_end()
        if self.suspected and not (self.hung or stayed):
            self._clear()
        lost = self.session.lost
        if lost:
            self.session.write_message(f"ocrlab watch: {lost}")
            self.session.ring.add(0, f"{lost}\n".encode())
        if code == 0 and not self.hung:
            return self._did_well(LOST if lost else 0)
        status = "hung" if self.hung else "killed" if name else "failed"
        if self.folder is None and code == WRONG_USE and not watcher_link.read_runs(self.scratch):
            return Ended(status, code, None, None, None, code)  # it has said so itself, and made nothing
        if self._stopped_early():
            self.session.write_message(f"ocrlab watch: {self._what(code, name)}, before it had a run folder")
            return Ended(status, code if code >= 0 else None, name, None, None, exit_status)
        folder = self._home()
        if stayed and self.suspected:
            what = f"{self._what(code, name)}, when it was told to end and had not moved for {stayed:.0f} s"
            self.session.write_message(
                f"ocrlab watch: {what}; what was said of that stays: {incident.short(self.suspected)}"
            )
        elif self.verdict is None or not self.hung:
            case = self._gather(status)
            self.verdict = self._judge(folder, case)
            place = self._write(folder, self.verdict, case)
            self._write_summary(self._what(code, name), self.verdict, place)
        self._fail(folder, status, name)
        return Ended(status, code if code >= 0 else None, name, self.verdict, folder.path, exit_status)

    def _hung_to_its_end(self) -> float:
        """Return for how many seconds nothing had moved when somebody ended what hung by the verdict, else 0.

        However sure the verdict is: that somebody lost patience explains less than where it stood.
        """
        causes = self.verdict.causes if self.verdict and self.suspected and not self.hung else []
        if not causes or self._went_on() or not self.session.ended_by:
            return 0.0
        return self.session.asked[1] - self.silence

    def _stopped_early(self) -> bool:
        """Tell whether somebody stopped a program that makes its own folder before it had one: nothing has failed."""
        number = self.session.asked[0]
        if self.folder or not number or self.child.code not in (-number, 128 + number):
            return False
        return not watcher_link.read_run(self.scratch) and not incident_folder.find_run_of(self.child.pid, self._runs())

    def _did_well(self, exit_status: int) -> Ended:
        log = self.session.ring.text()
        records, home = error_hook.read(self.scratch), self.folder.path if self.folder else None
        error_hook.keep_failures(records, home)
        swallowed = error_hook.swallowed(records, home)
        for hidden in filter(
            None, (clean_exit_hints.traceback(log), clean_exit_hints.loss(log), clean_exit_hints.cut(log), swallowed)
        ):
            self.session.write_message(f"ocrlab watch: {hidden}")
        record = watcher_link.read_record(self.scratch)
        if record is not None and training_findings.ended_early(record):
            return self._cut_short(record, exit_status)
        if self.folder:
            self._succeed(self.folder)
        return Ended("success", 0, None, None, self.folder.path if self.folder else None, exit_status)

    def _cut_short(self, record: Path, exit_status: int) -> Ended:
        """Write down a program that ended itself in the middle of its training, with exit status 0."""
        why = (training_findings.read(record) or ["the training did not end"])[0]
        self.session.write_message(f"ocrlab watch: exit status 0, and yet {why}; the run counts as failed")
        if self.folder:
            self.folder.fail({"type": "Unfinished", "message": why, "where": None})
        path = self.folder.path if self.folder else None
        return Ended("failed", 0, None, None, path, exit_status)

    @property
    def child(self) -> Child:
        """The program."""
        assert self.session.child is not None, "a case begins with the start of its program"
        return self.session.child

    def _stays(self, now: float) -> bool:
        """Tell whether a training of ours was told to end, and has not moved since: its own way there is shorter."""
        quiet, (number, when) = self.session.quiet, self.session.asked
        if not self.options.own_folder or number not in STOPPING or quiet.stops or not quiet.has_heartbeat:
            return False
        return now - max(when, quiet.since) > min(max(STOPS, 3 * quiet.longest), MOST_STOPS)

    def _asked(self) -> bool:
        """Tell whether the program waits for the person at our terminal, who may take all the time there is."""
        terminal = self.session.terminal
        return bool(terminal and terminal.keyboard and (terminal.asking(self.child.pid)))

    def _hangs(self, now: float) -> None:
        quiet = self.session.quiet
        sure = quiet.has_heartbeat
        kill = self.options.on_hang == "kill" or (sure and self.options.on_hang is None)
        what = f"nothing has moved for {now - quiet.since:.0f} s"
        if kill:
            self._end(f"hangs: {what};", now)
            return
        self.silence = quiet.since
        folder = self._home()
        case = self._gather("hung" if sure else "suspected")
        self.stuck = {name: text for name, text in case.texts.items() if name == incident.STACKS}
        self.verdict = self._judge(folder, case)
        self.suspected = self._write(folder, self.verdict, case)
        self._write_summary(f"{what}; the program goes on", self.verdict, self.suspected)

    def _end(self, why: str, now: float) -> None:
        """Write down where the program hangs, then end it."""
        self.hung = True
        folder = self._home()
        case = self._gather("hung")
        self.verdict = self._judge(folder, case)
        place = self._write(folder, self.verdict, case)
        best = self.verdict.causes[0].confidence if self.verdict.causes else 0.0
        unsure = self.options.on_hang == "kill" and not self.session.quiet.has_heartbeat and best < EVEN
        reservation = ", as --on-hang kill asks, though it may only be slow" if unsure else ""
        self._write_summary(f"the program {why} it is ended{reservation}", self.verdict, place)
        self.session.end(now)

    def _judge(self, folder: run_folder.RunFolder, case: Incident) -> Verdict:
        """Return the verdict, with experiments that can be typed as they stand: a person's own command, this run."""
        record = incident.find_recorded(folder.path, watcher_link.read_record(self.scratch))
        ours = self.options.own_folder or self.session.output is not None  # a command that nobody has typed
        return incident.fit_experiments(
            incident.judge(case, folder.path), () if ours else self.command, incident.short(record) if record else ""
        )

    def _write_summary(self, what: str, verdict: Verdict, place: Path) -> None:
        self.session.write_message(incident.summary(what, verdict, place, watcher_link.read_record(self.scratch)))

    def _went_on(self) -> bool:
        """Tell whether what was silent has moved by itself: last words after a signal that ends it are no progress."""
        since, (number, when) = self.session.quiet.since, self.session.asked
        return since > self.silence and not (number and 0 <= since - when < OBEYED)

    def _clear(self) -> None:
        """Take a suspicion back."""
        quiet = self.session.quiet
        what = "it went on to its end" if self.child.code == 0 else "it has ended"
        if self._went_on():
            self.stuck = {}
            what = f"it moves again ({quiet.what}) after {quiet.since - self.silence:.0f} s"
        if self.suspected:
            now = incident.short(incident_folder.withdraw(self.suspected) / "verdict.md")
            self.session.write_message(f"ocrlab watch: {what}; the report of its silence is now {now}")
        self.suspected = self.verdict = None

    def _gather(self, status: str) -> Incident:
        session = self.session
        by = "limit" if self.hung else session.ended_by
        log, family = session.ring.text(), process_tree.descendants(self.child.pid)
        home = self._home().path
        gathered = incident.gather(self.child, session.quiet, self.kills, log, status, by, home)
        facts, texts = {**gathered.facts, **session.memory.facts()}, {**self.stuck, **gathered.texts}
        facts |= incident.record(incident.find_recorded(home, watcher_link.read_record(self.scratch)))
        several = rank_status.gather(self.scratch, session.quiet.heartbeats, family, log)
        if status == "failed":
            records = error_hook.read(self.scratch)
            error_hook.keep_failures(records, home)
            hidden = error_hook.texts(records, log, self.child.pid, home)
            texts |= hidden
            facts |= {} if hidden else error_hook.suspected(records, log, self.child.pid, home)
            facts["exits"] = [*facts.get("exits", []), *error_hook.exits(records, log)]
        if several:
            facts["ranks"], texts[rank_status.FILE] = several, rank_status.table(several)
            rank_status.keep(self.scratch, several)
        return replace(gathered, texts=texts, facts=facts)  # where it hung tells why it was ended

    def _write(self, folder: run_folder.RunFolder, verdict: Verdict, case: Incident) -> Path:
        """Write an incident into the run folder, or elsewhere where that cannot be written; returns where."""
        again = self.suspected if self.suspected and self.suspected.is_dir() else None
        try:
            place = again or incident_folder.new_incident(folder.path)
            incident.write(place, verdict, case)
            return place
        except OSError as error:
            return self._write_elsewhere(folder.path, verdict, case, error)

    def _write_elsewhere(self, home: Path, verdict: Verdict, case: Incident, error: OSError) -> Path:
        try:
            spare = incident_folder.spare(self.command)
            place = incident_folder.new_incident(spare.path)
            incident.write(place, verdict, case)
            spare.fail({"type": "Elsewhere", "message": f"of {home}", "where": None}, verdict=cause(verdict))
        except (OSError, RunError):  # no disk has space: the program's exit status and a few lines are still told
            self.session.write_message(
                f"ocrlab watch: neither {home} nor {tempfile.gettempdir()} can be written ({error})"
            )
            return home / incident_folder.INCIDENT
        self.session.write_message(f"ocrlab watch: {home} cannot be written ({error}); the verdict is elsewhere")
        return place

    def _home(self) -> run_folder.RunFolder:
        """Return the run folder: ours, or the one that the program made, or a new one where it did not get so far."""
        owner = watcher_link.read_run(self.scratch)
        if self.folder is None and owner:
            return run_folder.RunFolder(owner[1], "")
        if self.folder is None:
            runs = self._runs()
            own = incident_folder.find_run_of(self.child.pid, runs) if self.session.child else None
            if own:
                return run_folder.RunFolder(own, "")
            self.folder = incident_folder.open_or_spare(runs, self.command)
        return self.folder

    def _runs(self) -> Path:
        return watcher_link.read_runs(self.scratch) or self.options.runs

    def _fail(self, folder: run_folder.RunFolder, status: str, name: str | None) -> None:
        message = f"{status} by {name}" if name else f"{status}, exit status {self.child.code}"
        owner = watcher_link.read_run(self.scratch)
        pid = owner[0] if owner and owner[1] == folder.path else self.child.pid
        error = {"type": status.capitalize(), "message": message, "where": None, "pid": pid}
        incident_folder.failed(folder.path, error, cause(self.verdict))
        record = watcher_link.read_record(self.scratch)  # of a script that calls `fit`, whose run folder is its own
        if record is not None and record != folder.path:
            incident_folder.also(record, folder.path / incident_folder.INCIDENT, error, cause(self.verdict))

    def _succeed(self, folder: run_folder.RunFolder) -> None:
        try:
            folder.succeed({})
        except RunError as error:  # the program did well, whatever becomes of our folder
            self.session.write_message(f"ocrlab watch: {error}")

    def _what(self, code: int, name: str | None) -> str:
        seconds = (self.child.ended or time.monotonic()) - self.child.started
        how = f"was killed by {name}" if name else f"ended with exit status {code}"
        lost = " (its guard was killed)" if self.child.guard_lost else ""
        return f"{Path(self.command[0]).name} {how} after {seconds:.1f} s{lost}"

    def _list_family(self, now: float) -> None:
        """Learn now and then which processes belong to the program, and in which control groups they are."""
        if now - self.child.started >= self.listing:
            self.listing = min(self.listing * FAMILY[1], self.listing + FAMILY[2])
            family = process_tree.descendants(self.child.pid)
            self.session.quiet.meet(family)
            for process in family:
                self.kills.note(process.pid)


def cause(verdict: Verdict | None) -> str:
    """Return the id of the most probable cause; `unknown` is one too."""
    return verdict.causes[0].id if verdict and verdict.causes else "unknown"
