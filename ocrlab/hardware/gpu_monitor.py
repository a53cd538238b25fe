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
SMI_SECONDS = 10.0
MOST = 1 << 18  # bytes that nvidia-smi may print: of thousands of processes
MIB = 1 << 20
ASKED = {  # nvidia-smi --help-query-gpu
    "name": "name", "uuid": "uuid", "total": "memory.total", "used": "memory.used", "free": "memory.free",
    "utilisation": "utilization.gpu", "temperature": "temperature.gpu", "power": "power.draw",
    "power_limit": "power.limit",
}  # fmt: skip

APPS = ("gpu_uuid", "pid", "used_memory")


class Stream:
    """The newest answer of a child that asks the driver every so many seconds; `close` it."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds, self.began = seconds, time.monotonic()
        self.answer: dict[str, Any] | None = None
        self.when = 0.0  # of the newest answer
        self.over = False  # the child has ended
        self.came = threading.Event()
        root = Path(__file__).parents[2]
        try:
            self.child: subprocess.Popen[bytes] | None = subprocess.Popen(
                [sys.executable, "-m", "ocrlab.hardware.gpu_monitor", f"{seconds:g}"],
                cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self.child, self.answer, self.over = None, {"loaded": False, "error": str(error)}, True
            self.came.set()
            return
        threading.Thread(target=self._listen, name="ocrlab-gpus", daemon=True).start()

    def latest(self) -> Reading:
        """Return {"cards", "driver", "age"} of the newest answer, or why there is none; never waits."""
        now, answer = time.monotonic(), self.answer
        if answer is None:
            if self.over:
                return Reading("gpus", missing="the process that asks the driver has died")
            waited = now - self.began
            if waited < FIRST:
                return Reading("gpus", missing="no answer yet")
            return Reading("gpus", missing=f"the driver has not answered for {waited:.0f} s: it hangs")
        if not answer.get("cards"):
            return Reading("gpus", missing=str(answer.get("error") or "there is no card"))
        age = now - self.when
        if age > LATE + 2 * self.seconds:
            why = "the process that asks it has died" if self.over else "it hangs"
            return Reading("gpus", {**answer, "age": age}, f"the driver has not answered for {age:.0f} s: {why}")
        return Reading("gpus", {**answer, "age": age})

    def close(self) -> None:
        """End the child, and do not wait for one that cannot be ended."""
        child = self.child
        if child is None:
            return
        with contextlib.suppress(OSError):
            child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1.0)

    def _listen(self) -> None:
        assert self.child is not None, "it was started"
        assert self.child.stdout is not None, "its output is a pipe"
        with self.child.stdout as pipe:
            for line in pipe:
                with contextlib.suppress(ValueError):
                    self.answer, self.when = json.loads(line), time.monotonic()
                    self.came.set()
        self.over = True
        self.came.set()


def once(seconds: float = FIRST) -> Reading:
    """Return what the driver says now, waiting for `seconds` at most."""
    stream = Stream(3600.0)
    try:
        stream.came.wait(seconds)
        reading = stream.latest()
    finally:
        stream.close()
    if reading.value is None and reading.missing == "no answer yet":
        return Reading("gpus", missing=f"the driver has not answered for {seconds:.0f} s: it hangs")
    return reading


def smi(seconds: float = SMI_SECONDS) -> dict[str, Any]:
    """Return the cards as nvidia-smi tells them, or why it does not; it is never waited for longer than `seconds`."""
    query = f"--query-gpu={','.join(ASKED.values())}"
    rows = _smi([query, "--format=csv,noheader,nounits"], seconds)
    if isinstance(rows, dict):
        return rows
    cards: list[dict[str, Any]] = []
    numbers: dict[str, int] = {}  # of a card, by its uuid
    for row in rows:
        card = {key: _figure(key, text) for key, text in zip(ASKED, row, strict=True)}
        numbers[card.pop("uuid")] = len(cards)
        cards.append({**{key: value for key, value in card.items() if value is not None}, "processes": []})
    apps = _smi([f"--query-compute-apps={','.join(APPS)}", "--format=csv,noheader,nounits"], seconds)
    for uuid, pid, used in apps if isinstance(apps, list) else []:
        number = 0 if len(cards) == 1 else numbers.get(uuid)  # in MIG mode the uuid is that of a slice
        if number is not None and pid.isdigit():
            size = int(used) * MIB if used.isdigit() else None
            cards[number]["processes"].append({"pid": int(pid), "bytes": size, "name": nvml.name_of(int(pid))})
    return {"loaded": False, "cards": cards}


def _smi(words: list[str], seconds: float) -> list[list[str]] | dict[str, Any]:
    """Return the rows that nvidia-smi prints, or the reason why there are none that were asked for."""
    try:
        child = subprocess.Popen(
            ["nvidia-smi", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError as error:
        return {"loaded": False, "error": f"neither libnvidia-ml.so.1 nor nvidia-smi: {error.strerror}"}
    output = _read_output(child, seconds)
    if output is None:
        return {"loaded": False, "error": f"nvidia-smi has not answered for {seconds:.0f} s: the driver hangs"}
    if child.returncode and len(output) < MOST:
        return {"loaded": False, "error": f"nvidia-smi: {output.strip()[:200]}"}
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines() if line.strip()]
    if any(len(row) != words[0].count(",") + 1 for row in rows):
        return {"loaded": False, "error": f"nvidia-smi answers what it was not asked: {output.strip()[:60]!r}"}
    return rows


def _read_output(child: subprocess.Popen[bytes], seconds: float) -> str | None:
    """Return what a child prints, as much as any driver has to say, and end it; None if it takes longer."""
    chunks: list[bytes] = []

    def read() -> None:
        assert child.stdout is not None, "its output is a pipe"
        with child.stdout as pipe:
            chunks.append(pipe.read(MOST))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(seconds)
    ended = False
    if chunks and len(chunks[0]) < MOST:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(seconds)
            ended = True
    if not ended:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1.0)  # and no longer: it may hang in the kernel
    return chunks[0].decode(errors="replace") if chunks and (ended or len(chunks[0]) == MOST) else None


def _figure(key: str, text: str) -> Any:
    if key in ("name", "uuid"):
        return text
    try:
        number = float(text)
    except ValueError:  # [N/A], [Not Supported]
        return None
    scale = {"total": MIB, "used": MIB, "free": MIB, "power": 1000, "power_limit": 1000}  # bytes; milliwatts as NVML's
    return int(number * scale.get(key, 1))


def main(seconds: float) -> None:
    """Print what the driver says, again and again until nobody listens; once where there is no card."""
    library, state = nvml.opened()
    parent = os.getppid()
    while os.getppid() == parent:
        answer = {**state, "cards": nvml.cards(library)} if library is not None else state
        if library is None and not state.get("loaded"):
            answer = smi()
        try:
            print(json.dumps(answer), flush=True)
        except OSError:
            os._exit(0)  # nobody listens; the interpreter would complain about the pipe
        if not answer.get("cards"):
            return
        time.sleep(seconds)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
