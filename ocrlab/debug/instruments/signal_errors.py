"""Whose an error is: an instrument keeps its own to itself, and passes on what a signal handler raised while it worked.

torch's handler of SIGCHLD raises in the main thread, wherever it is, when a loader worker has died; so may a user's.
"""

from __future__ import annotations

import signal
from typing import Any


def raised_by_signal(error: BaseException) -> bool:
    """Tell whether an exception comes out of a handler of a signal, and so belongs to the program."""
    handlers: list[Any] = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(getattr(each, "__func__", each), "__code__", None) for each in handlers} - {None}
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code in codes:
            return True
        frame = frame.tb_next
    return False
