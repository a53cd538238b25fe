"""torch.profiler around chosen steps of any program: where the time goes, in which module, and which line waits.

    with profile_steps(skip=2, steps=3, folder="runs/mine") as profile:
        for batch in loader:
            ...                    # a whole step
            profile.step()
    print(profile.finding()); profile.table(); profile.waits(); profile.trace      # the trace opens in ui.perfetto.dev

The steps are profiled as they are; one more step is looked at by source line, which takes longer and is not timed.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity

from ocrlab.debug.instruments.compiled_modules import any_compiled, is_compiled
from ocrlab.debug.instruments.profiler import operators
from ocrlab.debug.instruments.profiler.module_ranges import ModuleRanges
from ocrlab.debug.instruments.profiler.sync_points import Place, WaitFinder, short_path
from ocrlab.errors import ConfigError, RunError
from ocrlab.run_folder.fail_safe import InstrumentGuard

if TYPE_CHECKING:
    import pandas

MOST_EVENTS = 400_000  # of a trace that is written: some 15 MB as gz, which Perfetto still opens
DISPATCH, OURS = "PythonDispatchMode", 0.05  # an instrument around each operator, and its share worth a word
LITTLE = 0.05  # of a step: less of it in one operator is not reported
OUTSIDE = 0.3  # of a step outside of operators, from which on it is reported
QUIET = "KINETO_LOG_LEVEL"  # else it writes lines of its own to stderr


class StepProfile:
    """Call `step` at the end of every step; ask for `finding`, `table`, `waits`, `trace` when it is over."""

    def __init__(self, skip: int, steps: int, folder: Path | None, model: torch.nn.Module | None) -> None:
        self.skip, self.wanted, self.folder = skip, steps, folder
        self.number = 0
        self.seconds: list[float] = []  # of the profiled steps
        self.operators: list[operators.Operator] = []
        self.trace: Path | None = None
        self.problem = ""  # why nothing, or not everything, was profiled
        self._guard = InstrumentGuard("profile.steps", self._stop)
        self.device = ""
        self.waited = self.busy = 0.0  # seconds of the host waiting, of the device working, in all profiled steps
        self.lines: WaitFinder | None = None
        self.compiled = False
        self.ranges = ModuleRanges()
        if model is not None:
            self.ranges.name(model, True)
        self._profiler: Any = None
        self._began = 0.0
        self._over = False
        self._plain = 0.0  # seconds of the last step that was skipped: what one takes without the profiler
        self._modules = model

    def step(self) -> None:
        """Say that a step has ended."""
        now = time.perf_counter()
        if self._over:
            return
        with self._guard():
            self._step(now)

    def table(self, count: int | None = None) -> pandas.DataFrame:
        """Return the operators by module: share of the step, milliseconds a step on host and device, calls, shapes."""
        import pandas as pd

        steps = len(self.seconds) or 1
        names = ["operator", "module", "phase", "share", "host_ms", "device_ms", "calls", "shapes"]
        rows = [
            (
                o.name,
                o.module,
                o.phase,
                o.share,
                1e3 * o.host / steps,
                1e3 * o.device / steps,
                o.calls / steps,
                o.shapes,
            )
            for o in self.operators[:count]
        ]
        return pd.DataFrame(rows, columns=names)

    def waits(self) -> pandas.DataFrame:
        """Return the lines at which the host waits for the device in a step; on the CPU, those where it would."""
        import pandas as pd

        rows = [
            (p.operator, short_path(p.file), p.line, p.function, p.within, n, linecache.getline(p.file, p.line).strip())
            for p, n in self.places()
        ]
        return pd.DataFrame(rows, columns=["operator", "file", "line", "function", "within", "times", "source"])

    def places(self) -> list[tuple[Place, int]]:
        """Return the lines with their number of waits in one step, the most frequent first."""
        return self.lines.places.most_common() if self.lines else []

    def finding(self) -> str:
        """Return what the time goes into, and where the host waits, in one sentence."""
        if not self.operators:
            return f"Nothing was profiled: {self.problem or self._missing_steps()}"
        data = sum(o.share for o in self.operators if o.phase == "data")
        ours = sum(o.share for o in self.operators if o.name == DISPATCH)
        sentences = [
            self._python_share(),
            self._largest_operator(),
            f"{100 * data:.0f} % waits for data" if data > 0.1 else "",
            self._frequent_wait(),
            self._missing_lines(),
            f"{100 * ours:.0f} % is what looks at each operator (memory.watch, a dispatch mode of yours)"
            if ours > OURS
            else "",
            self.problem,
        ]
        return "; ".join(filter(None, sentences))

    def __str__(self) -> str:
        parts = [self.finding()]
        if self.operators:
            parts.append(self.table(8).to_string(index=False, float_format=lambda value: f"{value:.3g}"))
        waits = self.waits()
        if len(waits):
            parts.append(waits[["operator", "file", "line", "within", "times", "source"]].to_string(index=False))
        return "\n".join(parts)

    def _missing_steps(self) -> str:
        """Return why no step was profiled."""
        if not self.number:
            return "step() of the profile was never called; call it at the end of each step"
        many = f"{self.number} steps are" if self.number > 1 else "one step is"
        return f"{many} fewer than skip={self.skip} + 1"

    def _missing_lines(self) -> str:
        """Return why no line is listed that waits, where none was looked for."""
        need = self.skip + self.wanted + 1
        if self.number < need:
            return f"no step was traced by source line, as {need} steps are needed and {self.number} came"
        if self.compiled and not self.device:
            return "lines that would wait were not looked for, as a compiled graph would notice"
        return ""

    def _python_share(self) -> str:
        """Return how much of a step is outside of operators, where that is the largest part; not computed on a device.

        It is a share of a step without the profiler, which takes time between operators itself.
        """
        if self.device or not self.seconds or not self._plain:
            return ""
        share = 1 - sum(o.host for o in self.operators) / len(self.seconds) / self._plain
        if share < OUTSIDE or share < max(_shares(self.operators).values()):
            return ""
        return f"{100 * share:.0f} % of the step is outside of torch's operators: Python, or other libraries"

    def _largest_operator(self) -> str:
        """Return the operator that takes most of the step in all modules, and the module with its largest part."""
        shares = _shares(o for o in self.operators if o.phase != "data" and o.name != DISPATCH)
        if not shares:
            return ""
        [(name, share)] = shares.most_common(1)
        if share < LITTLE and not self.device:
            return f"no operator takes more than {max(1, round(100 * share))} % of the step"
        most = next(operator for operator in self.operators if operator.name == name)
        part = " in" if most.share > 0.66 * share else f", the largest part ({100 * most.share:.0f} %) in"
        where = f"{part} {most.module}" if most.module else ""
        return f"{100 * share:.0f} % of the {'device time of a ' if self.device else ''}step is {name}{where}"

    def _frequent_wait(self) -> str:
        if not self.places():
            return ""
        (place, count), others = self.places()[0], len(self.places()) - 1
        verb = "waits" if self.device else "would wait"
        more = f", and at {others} more line{'' if others == 1 else 's'}" if others else ""
        cost = f" ({100 * self.waited / sum(self.seconds):.0f} % of the time)" if self.device and self.seconds else ""
        times = "once" if count == 1 else f"{count} times"
        return f"the host {verb} for the device at {place}, {times} a step{more}{cost}"

    def _step(self, now: float) -> None:
        self.number += 1
        if self.number == self.skip and self.number > 1:  # the first one is slow by itself
            self._plain = now - self._began
        if self.number > self.skip and self._profiler is not None:
            _settle()
            self.seconds.append(time.perf_counter() - self._began)
            self._profiler.step()
        if self.number == self.skip:
            self._begin()
        elif self.number == self.skip + self.wanted:
            self._end_profile()
            self.lines = WaitFinder(dispatch=not self.compiled)
            self.lines.start()
        elif self.number > self.skip + self.wanted:
            self.close()
        self._began = time.perf_counter()

    def _begin(self) -> None:
        """Begin to profile; raises RunError where another profiler runs, whose record a second one would end."""
        if torch.autograd._profiler_enabled():
            raise RunError("Another profiler runs already", do="End it first, or leave this one out")
        cuda = torch.cuda.is_available()
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])
        self.device = torch.cuda.get_device_name() if cuda and torch.cuda.is_initialized() else ""
        is_quiet = QUIET in os.environ
        os.environ.setdefault(QUIET, "6")
        try:
            self._profiler = torch.profiler.profile(activities=activities, record_shapes=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._profiler.start()
        finally:
            if not is_quiet:
                os.environ.pop(QUIET, None)
        if not (any_compiled() if self._modules is None else is_compiled(self._modules)):  # hooks would compile it anew
            self.ranges.start()
        _settle()

    def _end_profile(self) -> None:
        """End the profile and read it."""
        self.ranges.stop()
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        profiler.stop()
        events: Sequence[Any] = profiler.events() or []
        self.compiled = operators.is_compiled(events)
        self.busy, self.waited = operators.busy_seconds(events), operators.waiting_seconds(events)
        total = self.busy if self.device else sum(self.seconds)
        if self.seconds:
            self.operators = operators.operators(events, total, bool(self.device))
        if self.folder is not None and len(events) > MOST_EVENTS:
            many = f"{len(events)} events, at most {MOST_EVENTS}"
            self.problem = f"the trace was not written: {many}; profile fewer steps"
        elif self.folder is not None:
            path = self.folder / f"trace-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.json.gz"
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                profiler.export_chrome_trace(str(path))
                self.trace = path
            except (OSError, RuntimeError) as error:
                self.problem = f"the trace was not written: {error}"

    def close(self) -> None:
        """End whatever still runs; raises nothing."""
        self._over = True
        with self._guard():
            if self.lines is not None:
                self.lines.stop()
            self._end_profile()

    def _stop(self, _error: BaseException) -> None:
        """End whatever still runs after an error of this instrument."""
        self._over, self.problem = True, self._guard.problem
        for part in (self.ranges, self.lines, self._profiler):
            with contextlib.suppress(Exception):
                if part is not None:
                    part.stop()
        self._profiler = None


@contextlib.contextmanager
def steps(
    skip: int = 2, steps: int = 3, folder: Path | str | None = None, model: torch.nn.Module | None = None
) -> Iterator[StepProfile]:
    """Profile training steps with torch.profiler, and find the lines at which the host waits for the device.

    Args:
        skip: Steps that run before, without the profiler.
        steps: Steps that are profiled. One more is traced by source line, and the profiler ends after it.
        folder: Folder for the Chrome trace (.json.gz, opens in ui.perfetto.dev); None writes none.
        model: The model from which modules take their names; None takes the outermost module that is called.

    Call `step()` of the returned profile at the end of each step. Times are in seconds, in tables in milliseconds.
    Raises ConfigError for a `skip` below 0 or `steps` below 1.
    """
    if not (isinstance(skip, int) and isinstance(steps, int) and skip >= 0 and steps >= 1):
        need = "whole numbers, skip 0 or more and steps 1 or more"
        raise ConfigError("These steps cannot be profiled", got=f"skip={skip}, steps={steps}", need=need)
    profile = StepProfile(skip, steps, Path(folder) if folder is not None else None, model)
    if skip == 0:
        with profile._guard():
            profile._begin()
            profile._began = time.perf_counter()
    try:
        yield profile
    finally:
        profile.close()


def _shares(some: Iterable[operators.Operator]) -> Counter[str]:
    """Return the share of each operator in all modules."""
    shares: Counter[str] = Counter()
    for operator in some:
        shares[operator.name] += operator.share  # type: ignore[assignment]
    return shares


def _settle() -> None:
    """Let the device finish, so that the clock sees the whole step."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
