"""The exact line at which a container grows: the user's own lines are followed until it does, and no longer."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from ocrlab.trace.leak_lines import is_own


class Watchpoint:
    """Looks at the length of a container at each line of the user's code; `place` is (file, line) once it grew.

    Not set where a debugger or a coverage tool is already tracing.
    """

    def __init__(self, container: Any) -> None:
        self.container, self.size = container, len(container)
        self.place: tuple[str, int] | None = None
        self.last: tuple[str, int] | None = None
        self.active = False
        self._frames: list[FrameType] = []

    def start(self) -> None:
        """Follow the lines of this thread from here on."""
        if sys.gettrace() is not None:
            return
        self.active = True
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if is_own(frame.f_code.co_filename) and frame.f_trace is None:
                frame.f_trace = self._line
                self._frames.append(frame)
                if self.last is None:
                    self.last = (frame.f_code.co_filename, frame.f_lineno)
            frame = frame.f_back
        sys.settrace(self._call)

    def stop(self) -> None:
        """Follow no longer."""
        if self.active:
            self.active = False
            sys.settrace(None)
            for frame in self._frames:
                frame.f_trace = None
        self._frames.clear()
        self.container = None

    def _call(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if not self.active or not is_own(frame.f_code.co_filename):
            return None
        self._look(frame)
        return self._line if self.active else None

    def _line(self, frame: FrameType, event: str, _arg: Any) -> Any:
        if not self.active:
            return None
        self._look(frame)
        if event == "return" and frame.f_back is not None:
            self.last = (frame.f_back.f_code.co_filename, frame.f_back.f_lineno)
        return self._line

    def _look(self, frame: FrameType) -> None:
        now = len(self.container) if self.container is not None else 0
        if now > self.size and self.last is not None and self.place is None:
            self.place = self.last
            self.container = None
            sys.settrace(None)  # frames that are open keep their own, which do nothing from here on
            self.active = False
            for other in self._frames:
                other.f_trace = None
            return
        self.size = now
        self.last = (frame.f_code.co_filename, frame.f_lineno)
