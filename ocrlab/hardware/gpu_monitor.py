"""The GPUs asked once a second by a child: a driver that hangs takes nothing with it but that child.

    stream = Stream(1.0); stream.latest(); stream.close()
    python -m ocrlab.hardware.gpu_monitor SECONDS        what the child runs: one line of JSON for each answer

Nothing here waits for the child: a process that hangs inside the driver cannot even be killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ocrlab.hardware import nvml
from ocrlab.records import Reading

LATE = 5.0  # seconds without an answer from which a driver counts as hanging; its first one may take longer
FIRST = 15.0


class Stream:
    """The newest answer of a child that asks the driver every so many seconds; `close` it."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds, self.began = seconds, time.monotonic()
        self.answer: dict[str, Any] | None = None
        self.when = 0.0  # of the newest answer
        self.over = False  # the child has ended
        self.came = threading.Event()
        command = [sys.executable, "-m", "ocrlab.hardware.gpu_monitor", f"{seconds:g}"]
        try:
            self.child: subprocess.Popen[bytes] | None = subprocess.Popen(
                command, cwd=Path(__file__).parents[2], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self.child, self.answer, self.over = None, {"loaded": False, "error": str(error)}, True
            self.came.set()
            return
        threading.Thread(target=self._listen, name="ocrlab-gpus", daemon=True).start()

    def latest(self) -> Reading:
        """Return {"cards", "driver", "age"} of the newest answer, or why there is none; never waits."""
        answer, age = self.answer, time.monotonic() - (self.when or self.began)
        why = "the process that asks it has died" if self.over else "it hangs"
        late = f"the driver has not answered for {age:.0f} s: {why}"
        if answer is None:
            return Reading("gpus", missing=late if self.over or age >= FIRST else "no answer yet")
        if not answer.get("cards"):
            return Reading("gpus", missing=str(answer.get("error") or "there is no card"))
        return Reading("gpus", {**answer, "age": age}, late if age > LATE + 2 * self.seconds else None)

    def close(self) -> None:
        """End the child, and do not wait for one that cannot be ended."""
        if self.child is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self.child.kill()
                self.child.wait(1.0)

    def _listen(self) -> None:
        assert self.child is not None and self.child.stdout is not None, "it was started with a pipe"
        with self.child.stdout as pipe:
            for line in pipe:
                with contextlib.suppress(ValueError):
                    self.answer, self.when = json.loads(line), time.monotonic()
                    self.came.set()
        self.over = True
        self.came.set()


def main(seconds: float) -> None:
    """Print what the driver says, again and again until nobody listens; once where there is no card."""
    library, answer = nvml.open_library()
    parent = os.getppid()
    while os.getppid() == parent:
        if library is not None:
            answer["cards"] = nvml.cards(library)
        try:
            print(json.dumps(answer), flush=True)
        except OSError:
            os._exit(0)  # nobody listens; the interpreter would complain about the pipe
        if not answer.get("cards"):
            return
        time.sleep(seconds)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
