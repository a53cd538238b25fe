"""A training in processes that Lightning starts itself (ddp_spawn, ddp_fork, ddp_notebook): no hook there hears errors.

Lightning tells `on_exception` of it in the process that has started the others, to which it is one of theirs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from ocrlab.flight import record_program


def hear(trainer: Any, told: Callable[[BaseException], object]) -> Callable[[], object]:
    """Have `told` called with the error with which a trainer leaves its training in here; returns what ends that."""
    run = getattr(trainer, "_run_stage", None)
    if not record_program.started() or run is None:
        return lambda: None

    def heard() -> Any:
        try:
            return run()
        except BaseException as error:
            with contextlib.suppress(Exception):
                told(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))  # without this function
            raise

    trainer._run_stage = heard
    return lambda: trainer.__dict__.pop("_run_stage", None)
