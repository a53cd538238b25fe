"""Is the ring right after a death at a random moment? One row of flight.py.

A round forks a program that trains, lets it die of SIGKILL, of a read at address 0 or of `_exit`, and compares what the
ring says with what the program and its loader workers had said themselves.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flight_truth
from flight_faults import PROGRAMS, Plan

from ocrlab.debug.flight_record import ring_reader
from ocrlab.debug.recorder import rng_state
from ocrlab.errors import OcrlabError

DEATHS = ("SIGKILL", "SIGSEGV", "_exit")
LATEST = 5.0  # seconds of training before the death: the first 64 steps are recorded more closely, in Python
PATIENCE = 90.0  # seconds for a program to begin
# By the program's last word: how many micro-batches further the record may be, and in which phases. A word and the
# recorder's own never come at once, and death may lie between them. What a loop says comes before the call in which the
# recorder hears the same: while the word is "backward", the record may still be in the loss, and not yet with the
# optimizer. In Lightning the recorder's callback is called before the module's own hook: there it is with the optimizer
# while the word is still "backward", and never after the word. The module of "lightning" has two networks, so that
# nobody knows which call ends the forward: its loss is part of it. "done" stands where no phase begins; what follows
# it, until the next step's "forward", is the averaging, the loading, and the next record, whose phase is its last byte.
AFTER = {(0, "optimiser"), (0, "data"), (1, "data"), (1, "forward")}
RACE = {
    "loop": {
        "forward": {(0, "forward"), (0, "loss")},
        "backward": {(0, "loss"), (0, "backward")},
        "optimiser": {(0, "backward"), (0, "optimiser")},
        "done": AFTER,
    },
    "train": {
        "forward": {(0, "forward"), (0, "loss")},
        "backward": {(0, "loss"), (0, "backward"), (0, "optimiser")},
        "optimiser": {(0, "optimiser")},
        "done": AFTER,
    },
    "lightning": {
        "forward": {(0, "forward")},
        "backward": {(0, "forward"), (0, "backward"), (0, "optimiser")},
        "optimiser": {(0, "optimiser")},
        "done": AFTER,
    },
}


@dataclass
class Score:
    """What was right over all rounds, and what was not."""

    rounds: int = 0
    right: int = 0
    workers: int = 0  # of rounds with all workers' samples known
    steps: int = 0
    late: int = 0  # of them after the first 64
    torn: int = 0
    losses: int = 0
    states: int = 0  # steps whose random states were compared
    phases: int = 0
    between: int = 0  # workers that had recorded the next sample when the truth still had the one before
    wrong: Counter[str] = field(default_factory=Counter)


def rounds(count: int, seed: int, programs: tuple[str, ...] = PROGRAMS) -> Score:
    """Kill `count` times and compare; programs, deaths and numbers of workers in turn."""
    import lightning  # noqa: F401  # the children begin with it loaded

    dice, score = random.Random(seed), Score()
    for number in range(count):
        program = programs[number % len(programs)]
        death = DEATHS[number // len(programs) % len(DEATHS)]
        workers = (0, 2)[number // (len(programs) * len(DEATHS)) % 2] if count > 9 else (0, 2)[number % 2]
        with tempfile.TemporaryDirectory(prefix="ocrlab-bench-") as folder:
            plan = Plan(folder, program, workers=workers, seed=dice.randrange(1000), steps=100_000, pause=0.004)
            before = score.wrong.total()
            once(plan, death, dice.random() * LATEST, score)
            score.rounds += 1
            score.right += score.wrong.total() == before
            if score.wrong.total() != before:
                print(f"{program}, {workers} workers, {death}: {dict(score.wrong)}", flush=True)
    return score


def once(plan: Plan, death: str, moment: float, score: Score) -> None:
    """Start a program, let it die, and compare."""
    own = {"SIGSEGV": "segfault", "_exit": "exit"}.get(death)
    plan = Plan(**{**plan.__dict__, "die": own, "die_after": moment})
    folder = Path(plan.folder)
    pid = started(plan)
    try:
        wait(pid, folder, moment if own is None else None)
    except BaseException:
        os.killpg(pid, signal.SIGKILL)  # it leads its session, and would train for hours
        raise
    for word in flight_truth.slots(folder).values():
        if word.pid != pid:
            with contextlib.suppress(OSError):
                os.kill(word.pid, signal.SIGKILL)
    time.sleep(0.05)
    compare(plan, score)


def wait(pid: int, folder: Path, moment: float | None) -> None:
    """Wait for a program's death; `moment` seconds after its first step it is killed, None: it sees to that itself."""
    end = time.monotonic() + PATIENCE
    while not begun(folder) and time.monotonic() < end:
        time.sleep(0.002)
    if moment is not None:
        time.sleep(moment)
        os.kill(pid, signal.SIGKILL)
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def started(plan: Plan) -> int:
    """Fork a child that runs the plan; nothing is imported again."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        quiet = os.open(Path(plan.folder, "log"), os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        import flight_victim

        flight_victim.run(plan)
    finally:
        os._exit(99)


def begun(folder: Path) -> bool:
    """Return whether the first step has begun."""
    try:
        return 0 in flight_truth.slots(folder)
    except FileNotFoundError:
        return False


def compare(plan: Plan, score: Score) -> None:
    """Count what the ring says and what is wrong with it."""
    if not begun(Path(plan.folder)):
        log = Path(plan.folder, "log").read_text(errors="replace").splitlines()
        score.wrong[f"did not begin: {log[-1:]}"] += 1
        return
    run = next(Path(plan.folder).glob("runs/*"), Path(plan.folder, "run"))
    try:
        paths = ring_reader.find_rings(run)
        flight = ring_reader.read_ring(paths[0])
    except (OcrlabError, IndexError, OSError) as error:
        score.wrong[f"no ring: {type(error).__name__} {error}"[:120]] += 1
        return
    before = {line["micro"]: line for line in flight_truth.lines(Path(plan.folder), "batch")}
    batches = {micro: line["names"] for micro, line in before.items()}
    exact = {line["micro"]: line["value"] for line in flight_truth.lines(Path(plan.folder), "loss")}
    last = max(batches)
    steps = {step.micro: step for step in flight.steps}
    score.steps += len(steps)
    score.late += sum(micro >= 64 for micro in steps)
    score.torn += flight.torn
    if flight.torn > 1:
        score.wrong[f"{flight.torn} records torn"] += 1
    newest = max(steps, default=-1)
    if not last <= newest <= last + 1 and not (flight.torn and newest == last - 1):
        score.wrong[f"the newest step is {newest - last:+d} from the truth"] += 1
    if newest >= 0 and len(steps) + flight.torn < min(newest + 1, 250):
        score.wrong["steps are missing"] += 1
    for micro, step in steps.items():
        if micro in batches and named(step.samples) != named(batches[micro]):
            score.wrong["samples of a step"] += 1
        if micro in exact and step.loss is not None:
            score.losses += 1
            if step.loss.hex() != exact[micro]:
                score.wrong["loss of a step"] += 1
        if step.loss is None and micro < last - 1:
            score.wrong["a loss is missing"] += 1
        right_before(step, before.get(micro, {}), before.get(micro - 1, {}), score)
    score.phases += right_phase(plan, flight, score)
    score.workers += right_workers(plan, flight, score)


def named(samples: list[str]) -> list[str]:
    """Return the names of files without folder and ending."""
    return [Path(sample).stem for sample in samples]


def right_before(step: Any, truth: dict[str, Any], earlier: dict[str, Any], score: Score) -> None:
    """Compare what a record holds of the time before its step with what the program said: learning rate, generators.

    A state may be missing where the generator has not moved since the `earlier` step: it is read now and then. The
    states are put back, so that Python, NumPy and torch themselves tell what they are: no byte of the record's form is
    known here.
    """
    if "lr" in truth and (step.lr is None or float(step.lr).hex() != truth["lr"]):
        score.wrong["learning rate of a step"] += 1
    if "states" not in truth:
        return
    score.states += 1
    moved = {name for name, state in truth["states"].items() if earlier.get("states", {}).get(name) != state}
    if missing := moved - {*step.random}:
        score.wrong[f"no random states of {', '.join(sorted(missing))}"] += 1
        return
    rng_state.restore(step.random)
    now = flight_truth.states()
    for name in sorted(name for name in step.random if now[name] != truth["states"][name]):
        score.wrong[f"random states of {name}"] += 1


def right_phase(plan: Plan, flight: Any, score: Score) -> bool:
    """Return whether the program can have been in the recorded phase since its last word; see RACE."""
    micro, word = flight_truth.slots(Path(plan.folder))[0].text.split()
    allowed = RACE[plan.program][word]
    now = flight.now
    if now is not None and (now.micro - int(micro), now.phase) in allowed:
        return True
    position = f"{now.micro - int(micro):+d} {now.phase}" if now is not None else "nothing"
    score.wrong[f"{plan.program}: in {word}, recorded {position}"] += 1
    return False


def right_workers(plan: Plan, flight: Any, score: Score) -> bool:
    """Return whether the sample of every worker (of this process, where it loads itself) is the one it was on."""
    words = {slot: word for slot, word in flight_truth.slots(Path(plan.folder)).items() if slot}
    for slot, word in words.items():
        index, name, state = word.text.split()
        if plan.workers:
            here = [worker for worker in flight.workers if worker.worker == slot - 1]
            samples = [worker.sample for worker in here]
            if any(worker.pid != word.pid and not worker.sample for worker in here):
                continue  # of the next epoch, and on nothing yet
        else:
            samples = [flight.sample, *(worker.sample for worker in flight.workers)]
        if any(same(sample, index, name) for sample in samples):
            continue
        if state == "done" and not plan.workers and flight.workers and not any(samples):
            continue  # the next epoch has begun, and no sample of it
        if state == "done" and any(samples):  # between two samples: the next one was recorded, the truth not yet
            score.between += 1
            continue
        score.wrong[f"{plan.program}, {plan.workers} workers: on {word.text}, recorded {samples}"] += 1
        return False
    return True


def same(sample: str, index: str, name: str) -> bool:
    """Return whether a recorded sample is the true one: by its file, or by its number in the data set."""
    return sample in (index, name, f"#{index}", f"index {index}") or Path(sample).stem == Path(name).stem
