"""What is replayed: the run's last start, its recorded steps, the snapshot to begin with, how it is started again."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import re
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from ocrlab import run_folder, safe_read
from ocrlab.debug.diagnosis import load_input
from ocrlab.debug.diagnosis.first_failed_rank import find_failed_rank
from ocrlab.debug.flight_record import notebook_cells, program_info, ring_reader, training_findings
from ocrlab.debug.flight_record.ring_format import Step
from ocrlab.debug.flight_record.ring_reader import Flight, is_whole
from ocrlab.debug.flight_record.worker_status import last_batch_failed
from ocrlab.debug.replay.child import file_sandbox
from ocrlab.debug.trials.consent import RecordedProgram
from ocrlab.debug.watch import error_hook
from ocrlab.errors import ConfigError, DataError, OcrlabError, RunError
from ocrlab.run_folder import launcher

ASIDE = "_ocrlab_aside"
VALIDATED = re.compile(r"validation batch (\d+)")
CHANGE_DIRECTORY = ("/bin/sh", "-c", 'cd "$0" && exec "$@" </dev/null')
NAMED_CHANGES = 4  # names that a warning tells
FOLDER = re.compile(r"^data:\s*(?P<folder>\S.*?)\s*$", re.MULTILINE)


@dataclass
class RecordedStep:
    """One step of a run that can be made again; `step` is its record, None where its batch was still being loaded."""

    run: Path
    flight: Flight
    program: dict[str, Any]
    number: int
    step: Step | None
    snapshot: Path | None
    ended: str  # success, failure, died, running, unknown
    warnings: list[str] = field(default_factory=list)
    trust: bool = False  # consent to start it, and to unpickle its batches, although somebody else recorded it
    from_start: bool = False  # its program runs from the beginning, with the batches of its own loader
    hide_later_files: bool = False  # those written since the run began are hidden until the first batch

    @property
    def samples(self) -> list[str]:
        """The samples of the step, of all its micro-batches."""
        steps = [step for step in self.flight.steps if step.number == self.number]
        return [name for step in steps for name in step.samples]

    @property
    def succeeded(self) -> bool:
        """Whether this step went well, as far as the record tells: the run has made others after it."""
        newest = self.flight.now or (self.flight.steps[-1] if self.flight.steps else None)
        if self.step is None or newest is None or self.number >= newest.number:
            return False
        return self.step.loss is None or math.isfinite(self.step.loss)

    @property
    def validation_batch(self) -> int | None:
        """The batch of a validation in which the run ended after its newest step, or before its first one, -1 where
        that is not known; None where it ended elsewhere.
        """
        newest = self.flight.now
        if newest is None and not self.flight.steps:
            return _validated_first(self.flight)
        if newest is None or newest.phase != "validation" or newest.number != self.number:
            return None
        batch = VALIDATED.match(self.flight.sample)
        return int(batch[1]) if batch else -1

    @property
    def is_loading(self) -> bool:
        """Whether the run ended with a batch on its way."""
        is_stream = any(worker.order and "indices" not in worker.order for worker in self.flight.workers)
        return self.step is None and (self.is_waiting or is_stream)

    @property
    def began_earlier(self) -> bool:
        """Whether what failed may have begun in a step before: the run ended after its loop, or its loss was bad."""
        if self.step is None:
            return bool(self.flight.steps) and not self.is_waiting and self.ended != "success"
        return self.step.loss is not None and self.step.loss - self.step.loss != 0

    @property
    def is_waiting(self) -> bool:
        """Whether a batch was on its way that no step has got."""
        done = {str(step.order.get("indices")) for step in self.flight.steps}
        orders = [str(w.order.get("indices")) for w in self.flight.workers if w.loader == 0 and w.order.get("indices")]
        return any(worker.failed for worker in self.flight.workers) or any(order not in done for order in orders)

    @property
    def on_gpu(self) -> bool:
        """Whether the run computed on a GPU, by what was recorded of it."""
        steps = self.flight.steps[-1:]
        return any(name.startswith("cuda") for step in steps for name in (*step.random, *step.memory))

    @property
    def world(self) -> int:
        """How many ranks the run had, of which one is made again."""
        environment = self.program.get("environment") or {}
        sizes = [environment.get(name) for name in ("WORLD_SIZE", "SLURM_NTASKS")]
        return max(int(number or 1) for number in (*sizes, self.program.get("world")))

    @property
    def previous_trainings(self) -> int:
        """How many trainings the program had recorded before this one, which are made again without being looked at."""
        return 0 if self.program.get("kind") == "ocrlab train" else int(self.program.get("nth") or 0)

    @property
    def process_path(self) -> list[int] | None:
        """Path of child-process numbers for programs that spawn their own ranks; None for `ocrlab train`."""
        ours = self.program.get("kind") == "ocrlab train"
        return None if ours else [int(number) for number in self.program.get("started") or ()]

    @property
    def previous_seconds(self) -> float:
        """How many seconds these took."""
        counts = self.previous_trainings and not self.program.get("interactive")
        return float(self.program.get("after") or 0.0) if counts else 0.0

    @property
    def full_run_seconds(self) -> float | None:
        """How many seconds the run took up to its newest step; None where it cannot be made again from its beginning:
        one rank of several, and `ocrlab train`, whose snapshots are complete.
        """
        if not self.flight.steps or self.program.get("kind") == "ocrlab train":
            return None
        if self.world > 1 and not self.program.get("from_start"):
            return None
        return max(0.0, self.flight.steps[-1].time - float(self.program.get("time") or 0.0)) + self.previous_seconds

    @property
    def replayed_micro_batches(self) -> int:
        """How many micro-batches are made again from the snapshot on."""
        first = next((shot.micro for shot in self.flight.snapshots if shot.path == self.snapshot), 0)
        return sum(first <= step.micro and step.number <= self.number for step in self.flight.steps)

    @property
    def error(self) -> tuple[str, str]:
        """The error that the run said it ended with, as `OSError: No space left`, and where: `checkpoint.py:44 save`;
        nothing where it said none.
        """
        error = (training_findings.training_end(self.run, self.flight.rank) or {}).get("error")
        with contextlib.suppress(OcrlabError, OSError):
            status = run_folder.status(self.run)
            error = status.error if status.status == "failure" else None
        if not error or not error.get("type"):
            return "", ""
        text = " ".join(f"{error['type']}: {error.get('message') or ''}".split())
        return text, str(error.get("your_code") or error.get("where") or "")

    @property
    def seconds(self) -> float:
        """What a recorded step takes: the median of the last ones, in which a validation counts little."""
        times = [step.time for step in self.flight.steps[-20:]]
        taken = [after - before for before, after in itertools.pairwise(times)]
        return statistics.median(taken) if taken else 0.0


def find(run: Path, number: int | None = None, rank: int | None = None) -> RecordedStep:
    """Return what `ocrlab replay RUN --step number` is about; None: the step that was being made when the run ended.

    Of several ranks it is about one, `rank`; None: the one that failed first. Raises RunError where there is no record,
    ConfigError for a step or a rank that it does not hold, DataError.
    """
    if not run.is_dir():
        what = f"{run} is not a folder" if run.exists() else f"There is no folder {run}"
        raise RunError(what, need="a run folder, as runs/NAME", missing=not run.exists())
    every = ring_reader.find_rings(run)
    option = f"--rank {rank}"
    if rank is None:
        rank = _first_failed_rank(run)
        option = f"rank {rank}, the one to look at, which was ended before its first step"
    paths = [path for path in every if ring_reader.parse_name(path)[0] == rank]
    if every and not paths:
        ranks = sorted({ring_reader.parse_name(path)[0] for path in every})
        need = f"--rank N, one of {', '.join(map(str, ranks))}"
        raise ConfigError(f"{run} has no record of rank {rank}", got=option, need=need)
    if not paths:
        add = "Add ocrlab.record(run, model, optimizer) to it, or ocrlab.Recorder() to Lightning's callbacks"
        raise RunError(
            f"{run} has no flight record",
            need="flight/ring-*.bin: a run of ocrlab train, or of a program with ocrlab.record or ocrlab.Recorder",
            do="Run it again with recorder.on=true" if (run / "config.yaml").is_file() else add,
        )
    flight, program, ended = _newest(paths), program_info.read(run, rank), _ended(run, rank)
    if not flight.steps:
        streams = bool(next(paths[0].parent.glob(f"walk-{rank}-0.json"), None))
        begun = any(worker.order for worker in flight.workers) or streams or _validated_first(flight) is not None
        if number or not begun:
            do = f"ocrlab diagnose {run} tells why it failed"
            raise RunError(f"{run} was ended before its first step", do=do)
        subject = RecordedStep(run, flight, program, 0, None, None, ended)
        subject.warnings += _warnings(subject)
        return subject
    chosen = _chosen(flight, number, ended)
    step = next((step for step in flight.steps if step.number == chosen), None)
    before = [shot for shot in flight.snapshots if step is None or shot.micro <= step.micro]
    torn = [shot.path.name for shot in before if not is_whole(shot.path)]
    reachable = [s for s in before if s.path.name not in torn and s.micro >= flight.steps[0].micro]
    subject = RecordedStep(run, flight, program, chosen, step, None, ended)
    has_first = any(step.micro == 0 for step in flight.steps)
    if program.get("from_start"):
        subject.from_start = True
    elif reachable:
        subject.snapshot = max(reachable, key=lambda shot: shot.micro).path
    elif not has_first and subject.full_run_seconds is not None:
        subject.from_start = True
    elif not has_first:
        shots = ", ".join(f"step {shot.number}" for shot in flight.snapshots) or "no step"
        gone = f", of them torn or gone: {', '.join(shot.path.name for shot in before)}" if before else ""
        raise ConfigError(
            f"Step {chosen} cannot be reached again",
            got=f"snapshots before {shots}{gone}",
            need="a snapshot before it",
            do=f"The newest steps can: ocrlab replay {run}",
        )
    subject.warnings += [f"{name} is torn or gone" for name in torn] + _warnings(subject)
    return subject


def command(subject: RecordedStep, job: Path) -> list[str]:
    """Return the words that start the program again as a replay; raises RunError where it cannot be."""
    folder, words = _start(subject, job)
    return [*CHANGE_DIRECTORY, folder, *words] if folder else words


def recorded_program(subject: RecordedStep) -> RecordedProgram:
    """Return what a replay of a step starts by the word of its run folder; raises RunError where it cannot be."""
    (folder, words), program = _start(subject, Path("JOB")), subject.program
    files = [program_info.find(subject.run, subject.flight.rank)]
    if program.get("interactive"):
        files.append(notebook_cells.file_name(subject.run, subject.flight.rank))
    if program.get("kind") == "ocrlab train" and (subject.run / "config.yaml").exists():
        files.append(subject.run / "config.yaml")
    variables = {str(name): str(value) for name, value in (program.get("environment") or {}).items()}
    return RecordedProgram(subject.run, files, words, folder, variables)


def _start(subject: RecordedStep, job: Path) -> tuple[str | None, list[str]]:
    """Return the folder and the words that start the program again, no folder where that is gone; raises RunError."""
    program = subject.program
    argv, folder = [str(word) for word in program.get("argv") or ()], str(program.get("cwd") or "")
    if program.get("kind") == "ocrlab train" and _is_ours(argv):
        return None, [sys.executable, "-m", "ocrlab.training.jobs.replay_step", str(job)]
    notebook = None
    if program.get("interactive"):
        notebook = notebook_cells.find_cells(subject.run, subject.flight.rank, program.get("pid"))
    if notebook is None and (program.get("interactive") or len(argv) < 2 or argv[1] == "-"):
        raise RunError(
            f"{subject.run} cannot be started again",
            got="a notebook or a Python prompt" if program.get("interactive") else f"the command {' '.join(argv)!r}",
            need="a program in a file",
            do="Put the training into a script, or train with ocrlab train",
        )
    if notebook is not None:
        path, cells = notebook
        if not cells.get("cells"):
            got = f"a notebook that has executed {int(cells.get('size') or 0) / 1e6:.1f} MB of cells"
            need = f"{notebook_cells.LIMIT / 1e6:.0f} MB of cells at most, or a program in a file"
            raise RunError(f"{subject.run} cannot be started again", got=got, need=need)
        argv, folder = ["", "-m", "ocrlab.debug.replay.child.run_cells", str(path)], str(cells.get("cwd") or folder)
    script = next((word for word in argv[1:4] if word.endswith(".py")), None)
    if script is not None and "-c" not in argv[1:4] and not Path(folder, script).is_file():
        got, need = str(Path(folder, script)), "the script that the run was started with, where it was"
        raise RunError(f"The program of {subject.run} is gone", got=got, need=need)
    executable = str(program.get("executable") or program["argv"][0])
    if not os.access(executable, os.X_OK):
        raise RunError(f"The Python of {subject.run} is gone", got=executable, need="the one that it was run with")
    return folder if folder and Path(folder).is_dir() else None, [executable, *argv[1:]]


def environment(subject: RecordedStep, job: Path) -> dict[str, str]:
    """Return the environment of a replay: that of this process with the run's; `ocrlab train` becomes one process.

    It makes each Python of the program write into the folder of the replay, and tells it when the run began.
    """
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("OCRLAB_WATCH", "OCRLAB_HEART"))
    }
    recorded = {str(name): str(value) for name, value in (subject.program.get("environment") or {}).items()}
    recorded = launcher.outside(recorded) if subject.process_path else recorded
    single = launcher.single(recorded) if subject.program.get("kind") == "ocrlab train" else {}
    variables = {**inherited, **recorded, **single, **file_sandbox.tracker_variables(str(job.parent.absolute()))}
    first = job.parent / "first"
    first.mkdir(exist_ok=True)
    shutil.copyfile(file_sandbox.__file__, first / f"{ASIDE}.py")
    run_folder.write_text(first / "sitecustomize.py", error_hook.FIRST.replace(error_hook.MODULE, ASIDE))
    began = f"{subject.program.get('time') or math.inf} {'hide' if subject.hide_later_files else 'note'}"
    return variables | {
        "PYTHONFAULTHANDLER": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(first), variables.get("PYTHONPATH")])),
        program_info.REPLAY: str(job),
        file_sandbox.VARIABLE: str(job.parent),
        file_sandbox.BEGAN: f"{began} {(subject.run / 'flight').absolute()}",
    }


def _first_failed_rank(run: Path) -> int:
    """Return the rank that failed first, as the verdict has it; what the ranks said of themselves knows no hang."""
    with contextlib.suppress(OcrlabError, OSError):
        named = find_failed_rank(load_input.read_run_folder(run))
        if named is not None:
            return named.rank
    return launcher.blamed(launcher.read(run / "flight"))


def _is_ours(argv: list[str]) -> bool:
    """Tell `ocrlab train` from somebody's script that calls it: what that script does belongs to the run.

    The child of a notebook is ours too, and its temporary folder is gone.
    """
    words = argv[1:]
    if any("ocrlab.notebook import child" in word for word in words[:4]):
        return True
    return ("-m" in words[:4] and "ocrlab" in words[:5]) or any(Path(word).name == "ocrlab" for word in argv[:4])


def _newest(paths: list[Path]) -> Flight:
    """Return the newest record that holds steps, else the newest; raises DataError where that cannot be read."""
    for path in paths:
        with contextlib.suppress(DataError):
            flight = ring_reader.read_ring(path)
            if flight.steps:
                return flight
    return ring_reader.read_ring(paths[0])


def _chosen(flight: Flight, number: int | None, ended: str) -> int:
    newest = flight.now or flight.steps[-1]
    refused = last_batch_failed(flight.workers, flight.steps[-1].time)  # it need not be the loop that asked for it
    last = newest.number + int((newest.phase == "data" or refused) and ended != "success")
    if number is None:
        bad = next((step.number for step in flight.steps if step.loss is not None and step.loss - step.loss != 0), None)
        return last if bad is None else bad
    numbers = [step.number for step in flight.steps]
    if not (number in numbers or number == last):
        raise ConfigError(
            f"Step {number} is not in the record",
            got=f"steps {numbers[0]} to {last}",
            need="one of them",
            do="recorder.steps or Recorder(steps=...) keeps more",
        )
    return number


def _validated_first(flight: Flight) -> int | None:
    """Return the batch of a validation in which a run ended before it had trained, -1 where that could not be loaded;
    None where it had not begun one.
    """
    batch = VALIDATED.match(flight.sample)
    if batch:
        return int(batch[1])
    return -1 if flight.workers and all(worker.loader for worker in flight.workers) else None


def _ended(run: Path, rank: int = 0) -> str:
    """Return how a run ended, as its sentinel or its recorder has it."""
    with contextlib.suppress(OcrlabError, OSError):
        return run_folder.status(run).status
    how = (training_findings.training_end(run, rank) or {}).get("how")
    return {"success": "success", "failed": "failure"}.get(str(how), "unknown")


def _warnings(subject: RecordedStep) -> list[str]:
    """Return what may make the replay differ from the run."""
    program, flight = subject.program, subject.flight
    texts = ["the run still lives: what is replayed is its newest step"] if subject.ended == "running" else []
    texts += [f"{flight.torn} records of steps are torn"] if flight.torn else []
    texts += find_changes(subject.run, program, subject.samples)
    if not Path(str(program.get("cwd") or ".")).is_dir():
        texts.append(f"the folder that it was started in is gone: {program.get('cwd')}")
    if subject.world > 1:
        text = f"rank {flight.rank} of {subject.world} is replayed alone, as if the others held what it holds:"
        text = f"{text} gradients are its own, so that only the first step from the snapshot is exact"
        text += "; the run spread its weights over the ranks, so that not even that is" if program.get("spread") else ""
        texts.append(f"{text}; --rank N takes another one")
    return texts


def find_changes(run: Path, program: Mapping[str, Any], samples: Sequence[str]) -> list[str]:
    """Return a warning for each kind of thing that is not what it was when the run began."""
    began = float(program.get("time") or 0)
    folder = Path(str(program.get("cwd") or "."))
    words = [str(word) for word in list(program.get("argv") or ())[1:4] if str(word).endswith((".py", ".yaml", ".yml"))]
    warnings = [f"{Path(word).name} has changed since the run began" for word in words if _newer(folder / word, began)]
    warnings += [f"{word} is gone: it was started with it" for word in words if not (folder / word).is_file()]
    data = [folder]
    with contextlib.suppress(OSError, UnicodeDecodeError):
        match = FOLDER.search((run / "config.yaml").read_text(encoding="utf-8"))
        data += [folder / match["folder"].strip("'\"")] if match else []
    pages = [name for name in samples if any(_newer(place / name, began) for place in data)]
    for what, names in (("written after the run began", pages), ("packages have changed", _packages(run))):
        more = f" and {len(names) - NAMED_CHANGES} more" if len(names) > NAMED_CHANGES else ""
        warnings += [f"{what}: {', '.join(names[:NAMED_CHANGES])}{more}"] if names else []
    return warnings


def _newer(path: Path, began: float) -> bool:
    try:
        return bool(began) and path.is_file() and path.stat().st_mtime > began
    except (OSError, ValueError):  # a name that no file can have
        return False


def _packages(run: Path) -> list[str]:
    """Return the packages of environment.json that have another version in this Python, or are gone."""
    try:
        recorded = json.loads(safe_read.read(run / "environment.json"))["packages"]
        pairs = [(str(name), str(version)) for name, version in recorded.items()]
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return []
    changes = []
    for name, version in pairs:
        now = "none"
        with contextlib.suppress(metadata.PackageNotFoundError):
            now = metadata.version(name)
        changes += [f"{name} {version} is {now} now"] if now != version else []
    return sorted(changes, key=lambda text: not text.startswith(("torch", "lightning", "numpy", "opencv")))
