"""Trace a block as a replay traces its last step."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from ocrlab.debug.replay.tracing.tracer import Tracer


@contextlib.contextmanager
def traced(model: Any, job: Mapping[str, Any], *, optimizers: Any = ()) -> Iterator[Tracer]:
    """Yield the tracer; an exception that leaves the block is placed, then goes on."""
    trace = Tracer(model, job, optimizers=optimizers)
    try:
        yield trace
    except BaseException as error:
        trace.failed(error)
        raise
    finally:
        trace.close()
