"""How a replay takes part in a program that records: its child registers a session here, which the recorder then calls.

The recorder imports nothing of the replay. Which module registers is in the job of the replay, under "session".
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ocrlab.debug.flight_record import program_info

Job = Mapping[str, Any]


class Session(Protocol):
    """One replay in this process: the recorder asks it for batches and steps, and reports what happens."""

    out: Path
    rank: int
    first_epoch: int
    from_start: bool  # the loop does not mark where a step begins
    batch: Any  # that the step at hand is to be made with

    def start_loop(self, state: Any) -> None: ...
    def batches(self, loader: Any, loop: Any) -> Iterator[Any]: ...
    def steps(self, numbers: Iterable[Any], loop: Any) -> Iterator[Any]: ...
    def next_step(self, loop: Any) -> None: ...
    def validation(self, loader: Any) -> Iterator[Any]: ...
    def start_lightning(self, trainer: Any, model: Any, *, validates: bool) -> Callable[[], Any]: ...
    def hand_over(self, module: Any, step: str, passed: Any, batch: Any) -> Callable[[], Any]: ...
    def feed(self, loader: Any) -> Any: ...
    def begin(self, batch: Any, micro: int | None = None) -> Any: ...
    def phase(self, name: str) -> None: ...
    def loss(self, value: Any, scale: float = 1.0) -> None: ...
    def end(self) -> None: ...
    def over(self, *, leaving: bool = False) -> None: ...
    def validate_loaded(self, batch: Any, samples: Sequence[str], number: int, loader: Any, loaded: Any) -> Any: ...
    def failed(self, error: BaseException) -> None: ...
    def finish(self) -> None: ...


_registered: list[tuple[Callable[[Job], None], Callable[[Job], Session | None]]] = []


def register(prepare: Callable[[Job], None], make: Callable[[Job], Session | None]) -> None:
    """Register what a replay does when the recorder is imported, and what makes its session where a recording begins:
    None for a recording that is not the one to replay.
    """
    _registered[:] = [(prepare, make)]


def prepare(job: Job) -> None:
    """Have the replay of a job prepare this process; raises ImportError where its module is gone."""
    importlib.import_module(str(job["session"]))
    _registered[0][0](job)


def session() -> Session | None:
    """Return the session of the recording that begins now; None in a normal training, and in a replay for what the
    program records before the run that is replayed. Raises what a job can have wrong.
    """
    job = program_info.job()
    if job is None:
        return None
    importlib.import_module(str(job["session"]))
    return _registered[0][1](job)
