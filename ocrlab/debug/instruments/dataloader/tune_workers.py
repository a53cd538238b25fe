"""Which number of workers and threads is fastest: settings are tried in turns, and only what was tried is recommended.

Settings take turns, so that what else the machine does falls on all of them alike. A difference counts only where the
slowest turn of the better one beats the fastest turn of the other, and again in as many turns more: of three turns
against three, chance alone puts one setting wholly before the other in 1 of 20 trials, of six against six in 1 of 924.
"""

from __future__ import annotations

import contextlib
import statistics
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ocrlab.errors import ConfigError

if TYPE_CHECKING:
    import pandas

COLUMNS = ("workers", "threads", "step_ms", "low_ms", "high_ms", "waiting", "first_s", "steps", "error")
WARM = 2  # steps before the clock runs, besides the batches that workers have fetched ahead
MANY_WORKERS = "This DataLoader will create"  # torch's warning where there are fewer cores: that is what is tried
WORTH = 0.05  # of the time of a step; a smaller gain is not a reason to change a setting


@dataclass(frozen=True)
class Setting:
    """Workers of the loader and threads of the step."""

    workers: int
    threads: int

    def __str__(self) -> str:
        ends = ["" if number == 1 else "s" for number in (self.workers, self.threads)]
        return f"{self.workers} worker{ends[0]}, {self.threads} thread{ends[1]}"


@dataclass
class Trial:
    """One setting and what it gave: seconds of a step in each turn, share of waiting, first batch, or an error."""

    setting: Setting
    seconds: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    start: float = 0.0  # seconds to the first batch
    steps: int = 0
    error: str = ""

    @property
    def worked(self) -> bool:
        """Whether the setting was measured."""
        return bool(self.seconds) and not self.error

    @property
    def median(self) -> float:
        """Seconds of a step, the median of the turns."""
        return statistics.median(self.seconds)

    def is_clearly_faster(self, other: Trial) -> bool:
        """Return whether this is faster in every turn than the other setting in any, and by enough to matter."""
        return max(self.seconds) < min(other.seconds) and self.median < (1 - WORTH) * other.median

    def __str__(self) -> str:
        low, middle, high = (f"{1000 * t:.3g}" for t in (min(self.seconds), self.median, max(self.seconds)))
        return f"{middle} ms" + (f" ({low} to {high} in {len(self.seconds)} turns)" if len(self.seconds) > 1 else "")

    def row(self) -> dict[str, Any]:
        """Return the figures by name, None where there are none."""
        figures: list[float | None] = [None] * 4
        if self.worked:
            times = (self.median, min(self.seconds), max(self.seconds))
            figures = [*(1000 * seconds for seconds in times), statistics.median(self.waiting)]
        setting = (self.setting.workers, self.setting.threads)
        return dict(zip(COLUMNS, (*setting, *figures, self.start, self.steps, self.error), strict=True))


@dataclass
class TuningResult:
    """Settings that were tried; `used` is the one in use now."""

    trials: list[Trial]
    used: Setting

    @property
    def now(self) -> Trial | None:
        """The trial of the setting in use, where it was tried and worked."""
        return next((trial for trial in self.trials if trial.setting == self.used and trial.worked), None)

    @property
    def best(self) -> Trial | None:
        """The setting to use: the fastest, unless the one in use is as fast within the spread of the turns."""
        fastest = min((t for t in self.trials if t.worked), key=lambda trial: trial.median, default=None)
        now = self.now
        return now if now is not None and fastest is not None and not fastest.is_clearly_faster(now) else fastest

    @property
    def share(self) -> float:
        """The speed of the setting in use, 0 to 1, of the recommended one's."""
        best, now = self.best, self.now
        return best.median / now.median if best is not None and now is not None else float("nan")

    def table(self) -> pandas.DataFrame:
        """Return one row a setting: milliseconds of a step with their spread over the turns, waiting, first batch."""
        import pandas as pd

        return pd.DataFrame([trial.row() for trial in self.trials])

    def finding(self) -> str:
        """Return the recommendation in one sentence, with its measurement and its spread."""
        best, now, count = self.best, self.now, len(self.trials)
        if best is None:
            return f"No setting worked: {self.trials[0].error}"
        if now is None:
            return f"{best.setting}: {best} a step, the fastest of {count} settings; {self.used} did not work"
        if best is now:
            return (
                f"Stay with {best.setting}: {now} a step, and none of the others is clearly faster (of {count} tried)"
            )
        gain = 100 * (1 - best.median / now.median)
        return f"{best.setting}: {best} a step instead of {now} with {now.setting}, {gain:.0f} % less"


def measure(
    make_loader: Callable[[int], Iterable[Any]],
    step: Callable[[Any], object],
    workers: Sequence[int],
    threads: Sequence[int],
    *,
    used: Setting,
    seconds: float = 2.0,
    turns: int = 3,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> TuningResult:
    """Return how fast each number of workers (and of torch's threads) is, with the user's own data and step.

    `make_loader(workers)` returns a fresh loader, `step(batch)` is the training step, `used` the setting in use. Each
    setting has `turns` turns of `seconds`, the one in use and one that seems better as many again. Raises ConfigError
    for what cannot be tried.
    """
    threads_before = torch.get_num_threads()
    tried = [Setting(w, t) for t in threads for w in workers]
    if not tried or any(s.workers < 0 or s.threads < 1 for s in tried) or turns < 1 or seconds <= 0:
        need = "workers of 0 or more, threads and turns of 1 or more, seconds above 0"
        raise ConfigError("These settings cannot be measured", got=f"workers={workers}, threads={threads}", need=need)
    trials = [Trial(setting) for setting in dict.fromkeys([used, *tried])]
    plan, done = turns * len(trials), 0
    measured = TuningResult(trials, used)

    def take(those: Sequence[Trial]) -> None:
        nonlocal done
        for turn in range(turns):
            for trial in those if turn % 2 == 0 else reversed(those):
                if not trial.error:
                    _turn(trial, make_loader, step, seconds)
                done += 1
                if progress is not None:
                    progress({"kind": "measure", "step": done, "total": max(done, plan)})

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", MANY_WORKERS)
            take(trials)
            best, now = measured.best, measured.now
            if best is not None and now is not None and best is not now:
                take([now, best])
    finally:
        torch.set_num_threads(threads_before)
    return measured


def _turn(trial: Trial, make: Callable[[int], Iterable[Any]], step: Callable[[Any], object], seconds: float) -> None:
    """Take one turn; an error is stored, and ends this setting only."""
    torch.set_num_threads(trial.setting.threads)
    began = time.perf_counter()
    try:
        loader = make(trial.setting.workers)
        with contextlib.closing(_endless(loader)) as batches:
            batch = next(batches)
            trial.start = max(trial.start, time.perf_counter() - began)
            ahead = trial.setting.workers * int(getattr(loader, "prefetch_factor", None) or 0)
            until = time.perf_counter() + seconds
            for number in range(ahead + WARM):  # those fetched ahead, at most as long as what follows is timed
                step(batch)
                batch = next(batches)
                if number + 1 >= WARM and time.perf_counter() > until:
                    break
            _synchronize()
            began, waited, steps = time.perf_counter(), 0.0, 0
            while steps < 2 or time.perf_counter() - began < seconds:
                step(batch)
                asked = time.perf_counter()
                batch = next(batches)
                waited += time.perf_counter() - asked
                steps += 1
            _synchronize()
            spent = time.perf_counter() - began
    except Exception as error:
        trial.error = f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"
        return
    trial.seconds.append(spent / steps)
    trial.waiting.append(waited / spent)
    trial.steps += steps


def _endless(loader: Iterable[Any]) -> Generator[Any, None, None]:
    """Yield the batches of epoch after epoch; raises ConfigError for a loader without any."""
    while True:
        came = False
        for batch in loader:
            came = True
            yield batch
        if not came:
            raise ConfigError("The loader returns no batch", need="a loader that can be iterated over again")


def _synchronize() -> None:
    """Let a device finish what it was asked for, so that the clock sees all of it."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
