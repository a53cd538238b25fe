"""One open notebook, from `setup` to `finish`: its parameters, what it shows, its outcome, and the result it keeps."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import inspect
import os
import random
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import IO, Any

from ocrlab._version import __version__
from ocrlab.config.schema import Config
from ocrlab.debug.watch.supervisor import Options
from ocrlab.errors import ConfigError
from ocrlab.notebook import child_main, child_runner
from ocrlab.records import Verdict
from ocrlab.redaction import clean
from ocrlab.reports import progress_view, verdict_view
from ocrlab.reports.notebooks import outcome, results
from ocrlab.reports.notebooks import parameters as notebook_parameters
from ocrlab.reports.notebooks.jupyter_kernel import STACKS
from ocrlab.reports.notebooks.parameters_to_config import configure, fields
from ocrlab.reports.view import View, join_views

ENOUGH = 500  # optimizer steps, as in 03_train: from random weights, fewer never gave a detector that finds text


@dataclass(frozen=True)
class Trained:
    """How a training ended, with the fields of `training.loop.RunResult`, whose import would bring torch along."""

    folder: Path
    status: str
    metrics: dict[str, float]
    checkpoint: Path | None
    pages: int = 0


class Block:
    """One output that can be rewritten in place; it is displayed when it is first updated."""

    def __init__(self) -> None:
        self.id = f"ocrlab-{uuid.uuid4().hex[:12]}"
        self.displayed = False

    def update(self, view: View, more: Mapping[str, Any] | None = None) -> None:
        """Show `view`, with further representations of it by MIME type."""
        from IPython.display import display

        bundle = {**view._repr_mimebundle_(), **(more or {})}
        display(bundle, raw=True, display_id=self.id, update=self.displayed)
        self.displayed = True


@dataclass
class Lab:
    """One open notebook: its parameters, the config made of them, and the outcome at its end."""

    name: str
    parameters: dict[str, Any]
    config: Config
    top: Block
    began: float
    training: Trained | None = None
    next: str = ""  # the command to go on with, in place of that of `next_command`
    judgements: list[outcome.Judgement] = field(default_factory=list)
    blocks: list[progress_view.Live] = field(default_factory=list)

    def show(self, *views: View) -> None:
        """Display views below the cell."""
        for view in views:
            Block().update(view)

    def progress(self, title: str) -> progress_view.Live:
        """Display a progress block and return it: call it with events."""
        block = progress_view.Live(title, Block().update)
        self.blocks.append(block)
        return block

    def run(
        self,
        function: Callable[..., Any] | None = None,
        *args: Any,
        title: str = "",
        in_process: bool = False,
        silence: float = 300.0,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Train as `config` says, or call an importable function, in a watched child, and return what comes of it.

        Output streams, and so do the events that a function sends to its argument `progress`, below `title`. `silence`
        and `timeout` (seconds) are those of `ocrlab watch`. With `in_process` all happens in the kernel, where a
        debugger can step through it. Raises ChildFailed, or in the kernel what the function raises.
        """
        called: Callable[..., Any] = function or child_main.train
        about = called.__name__
        if function is None:
            args, about = (self.config,), f"Training {self.config.encoder} + {self.config.decoder}"
        progress = None
        if "progress" in inspect.signature(called).parameters and "progress" not in kwargs:
            progress = self.progress(title or about)
        if in_process:
            back = called(*args, **kwargs, **({"progress": progress} if progress else {}))
        else:
            folder = Path(self.config.runs) / f"{time.strftime('%Y%m%d-%H%M%S')}-{called.__name__}"
            own = function is None
            options = Options(None if own else folder, silence=silence, timeout=timeout, own_folder=own)
            back = child_runner.call(called, args, kwargs, options, progress)
        if function is None:
            self.training = back = Trained(**back)
        return back

    def outcome(self, metric: str, value: float, limit: float, warn: float | None = None, unit: str = "") -> None:
        """Judge a number: PASS at `limit` or above, WARN down to `warn`, else FAIL."""
        self.judgements.append(outcome.Judgement(metric, value, limit, limit if warn is None else warn, unit))

    def finish(self) -> None:
        """Set the outcome, keep the result in notebook and run folder, and print one line of stable words."""
        run, seconds = self.training, time.monotonic() - self.began
        facts = f"{progress_view.duration(seconds)} in all · seed {self.config.seed} · ocrlab {__version__}"
        facts += f" · {clean(str(run.folder))}" if run else ""
        final = outcome.judged(self.name, self.judgements, self.next or self.next_command(), facts)
        files = [run.checkpoint] if run and run.checkpoint else []
        metrics = run.metrics if run else {}
        result = results.build(final, metrics=metrics, parameters=self.parameters, artefacts=files, seconds=seconds)
        if run:
            results.save(result, run.folder)
        self.top.update(outcome.view(final), results.bundle(result))
        print(f"{self.name}: {final.word}")

    def next_command(self) -> str:
        """Return the command to go on with: use the detector when it is good, else train it for longer."""
        run = self.training
        if run is None:
            return ""
        if run.checkpoint and all(judgement.word == "PASS" for judgement in self.judgements):
            return f"ocrlab predict --checkpoint {clean(str(run.checkpoint))} PAGES --out found"
        longer = max(2 * self.config.trainer.max_steps, ENOUGH)
        return f"ocrlab train --config {clean(str(run.folder))}/config.yaml trainer.max_steps={longer}"

    def after_cell(self, result: Any) -> None:
        """Flush the progress blocks; where the cell failed, show at the top where the notebook stopped.

        The word stays INCOMPLETE, because `finish` never ran, unless a child died: that is a crash.
        """
        for block in self.blocks:
            block.flush()
        error = result.error_before_exec or result.error_in_exec
        if error is None:
            return
        place = f"cell [{result.execution_count}]" if result.execution_count else "a cell"
        word, following = "INCOMPLETE", ""
        if isinstance(error, child_runner.Stopped):
            text, folder = f"Stopped by you in {place}.", error.ended.folder if error.ended else None
            if folder and (folder / "checkpoints" / "last.ckpt").exists():
                text = f"Stopped by you in {place}; the last checkpoint is saved."
                following = f"ocrlab train --resume {clean(str(folder))}"
        elif isinstance(error, child_runner.ChildFailed):
            word, text, folder = error.word, f"It stopped in {place}. {error.what}.", error.ended.folder
            following = f"ocrlab diagnose {clean(str(folder))}" if folder else ""
        else:
            first = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
            text = f"It stopped in {place}. {first}"
        stopped, seconds = outcome.Outcome(self.name, word, clean(text), next=following), time.monotonic() - self.began
        stored = results.build(stopped, metrics={}, parameters=self.parameters, seconds=seconds)
        shown = [outcome.view(stopped)]
        if isinstance(error, child_runner.ChildFailed):
            stored = replace(stored, ending=error.record(result.execution_count))
            shown.append(verdict_view.view(error.ended.verdict or Verdict()))
        self.top.update(join_views(shown), results.bundle(stored))


_open: list[Lab] = []  # the newest lab, for the hook that IPython calls after every cell
_stacks: list[IO[str]] = []  # faulthandler writes to a descriptor, so its file must stay open


def setup(namespace: Mapping[str, Any]) -> Lab:
    """Check the parameters of a notebook (`namespace` is its `globals()`), seed, and show the outcome as INCOMPLETE.

    Raises ConfigError with everything that is wrong with the parameters.
    """
    top, cells = Block(), list(namespace.get("In", []))
    try:
        values = notebook_parameters.check(cells, namespace, also=fields())
        config = configure(values)
    except ConfigError as error:
        sentence = clean(f"It was refused before it began. {error}")
        top.update(outcome.view(outcome.Outcome("parameters", "INCOMPLETE", sentence)))
        raise
    name = str(values.get("name") or "notebook")
    running = outcome.Outcome(name, "INCOMPLETE", "It still runs, or it ended before its last cell.")
    if not os.environ.get("SERVER_SOFTWARE", "").startswith("voila/"):  # its page keeps what it has once shown
        top.update(outcome.view(running), results.bundle(results.build(running, metrics={}, parameters=values)))
    lab = Lab(name, values, config, top, time.monotonic())
    changed = clean(notebook_parameters.changed(cells, namespace, values))
    set_here = ", ".join(f"{key} = {value!r}" for key, value in changed.items()) or "as in the cell above"
    rows = [("data", clean(config.data)), ("runs go to", clean(config.runs)), ("parameters", set_here)]
    html = "".join(f'<p><span style="opacity:.7">{key}</span> <code>{escape(text)}</code></p>' for key, text in rows)
    lab.show(View(html, "\n".join(f"{key}: {text}" for key, text in rows)))
    random.seed(config.seed)  # for what a reader adds; training seeds itself, and torch is slow to import
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(config.seed)
    _keep_stacks(name, Path(config.runs))
    _hook(lab)
    return lab


def _keep_stacks(name: str, runs: Path) -> None:
    """Let a crash of the kernel, and SIGUSR1, leave the stack of every thread in a file: ipykernel swallows stderr."""
    file: IO[str]
    folder = Path(os.environ.get(STACKS) or runs / ".stacks")  # the engine `ocrlab` looks for them itself
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / f"{name}-{os.getpid()}.txt").open("w", encoding="utf-8")
    except OSError:
        file = tempfile.NamedTemporaryFile("w", prefix=f"ocrlab-{name}-", suffix=".txt", delete=False)  # noqa: SIM115
    faulthandler.enable(file, all_threads=True)
    faulthandler.register(signal.SIGUSR1, file, all_threads=True)
    while _stacks:  # of a first cell that was run before
        _stacks.pop().close()
    _stacks.append(file)
    atexit.register(_drop_if_empty, Path(file.name))


def _drop_if_empty(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.stat().st_size == 0:
            path.unlink()


def _hook(lab: Lab) -> None:
    """Let IPython tell the newest lab when a cell has ended."""
    first = not _open
    _open[:] = [lab]
    with contextlib.suppress(ImportError):
        from IPython import get_ipython

        shell = get_ipython()
        if first and shell is not None:
            shell.events.register("post_run_cell", lambda result: _open[0].after_cell(result))
