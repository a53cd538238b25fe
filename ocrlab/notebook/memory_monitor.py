"""Memory of the notebook's processes and of the GPUs while a cell runs: one block that is drawn again in place.

    with notebook.memory_monitor.live():     the kernel with all its children; live(PID) watches another process
        run = lab.run()

A thread draws at most twice a second. What it showed last stays in the notebook, and is what an export shows.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from html import escape
from typing import Any

from ocrlab.debug.diagnosis.oom_message import size_text
from ocrlab.debug.memory.monitor_log import Monitor, limits
from ocrlab.notebook.lab_session import Block
from ocrlab.redaction import clean
from ocrlab.reports.view import ACCENT, BAD, View, heading

FASTEST = 0.5  # seconds between two drawings
WIDTH, HEIGHT, POINTS = 220, 34, 160
CSS = f"""
.ocrlab .monitor {{ display: grid; grid-template-columns: max-content {WIDTH}px max-content 1fr; gap: 3px 16px;
  align-items: center; }}
.ocrlab .monitor .grows {{ color: var(--jp-error-color0, {BAD}); }}
"""
NAMES = {"host": "processes", "group": "control group", "shm": "/dev/shm"}


class Watching:
    """A monitor that draws itself until `stop`; `samples` are kept, the newest last."""

    def __init__(
        self, pid: int | None, seconds: float, show: Callable[[View], None], monitor: Monitor | None = None
    ) -> None:
        self.seconds, self.show = max(seconds, FASTEST), show
        self.monitor = monitor or Monitor(pid, self.seconds)
        self.samples: list[dict[str, Any]] = []
        self.over = threading.Event()
        self.problem = ""
        self.thread = threading.Thread(target=self._run, name="ocrlab-monitor", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Draw a last time and end; may be called again."""
        if not self.over.is_set():
            self.over.set()
            self.thread.join(10 * FASTEST)
            self.monitor.close()

    def _run(self) -> None:
        try:
            while True:
                last = self.over.is_set()
                sample = self.monitor.sample()
                if sample["alive"] or not self.samples:
                    self.samples = [*self.samples[-POINTS:], sample]
                self.show(view(self.samples, running=not (last or not sample["alive"])))
                if last or not sample["alive"]:
                    return
                self.over.wait(self.seconds)
        except Exception as error:  # an instrument never breaks what it looks at
            self.problem = f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def live(pid: int | None = None, seconds: float = 1.0) -> Iterator[Watching]:
    """Show the memory of a process with its children, the kernel by default, while the block runs."""
    watching = Watching(os.getpid() if pid is None else pid, seconds, Block().update)
    try:
        yield watching
    finally:
        watching.stop()


def view(samples: list[dict[str, Any]], *, running: bool) -> View:
    """Return the newest sample with the curves up to it, as HTML that stands alone, and in words."""
    last = samples[-1]
    rows, lines = [], []
    for name, (used, limit) in limits(last).items():
        label, text = NAMES.get(name, name), size_text(int(used)) + (f" of {size_text(int(limit))}" if limit else "")
        grows = _grows(last["growth"].get(name, {}))
        points = [(sample["seconds"], limits(sample)[name][0]) for sample in samples if name in limits(sample)]
        rows.append(
            f"<span>{escape(label)}</span>{_spark(label, points)}<span>{escape(text)}</span>"
            f'<span class="grows">{escape(grows)}</span>'
        )
        lines.append(f"{label}: {text}{f', {grows}' if grows else ''}")
    notes = [_card(card) for card in last["gpus"].get("cards", ())]
    notes += [f"GPUs: {last['gpus']['missing']}"] if last["gpus"].get("missing") else []
    growing = [line for line in lines if ", +" in line]
    state = "so far" if running else "in all"
    finding = f"Memory over {last['seconds']:.0f} s {state}: " + (growing[0] if growing else "nothing grows")
    notes_html = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    html = f'<style>{CSS}</style>{heading(finding)}<div class="monitor">{"".join(rows)}</div>{notes_html}'
    return View(clean(html), clean("\n".join([finding, *lines, *notes])))


def _grows(growth: dict[str, Any]) -> str:
    if not growth.get("grows"):
        return ""
    left = growth.get("left")
    return f"+{size_text(int(growth['rate']))}/s" + (f", full in {left:.0f} s" if left is not None else "")


def _card(card: dict[str, Any]) -> str:
    parts = [f"gpu {card['index']} {card.get('name', '')}"]
    parts += [f"{card['utilisation']} % busy"] if "utilisation" in card else []
    parts += [f"{card['temperature']} °C"] if "temperature" in card else []
    parts += [f"{card['power'] / 1000:.0f} W"] if "power" in card else []
    parts += [f"throttled: {', '.join(card['throttled'])}"] if card.get("throttled") else []
    others = [process for process in card.get("processes", ()) if not process.get("ours")]
    parts += [
        f"{process['name'] or 'process'} {process['pid']} holds {size_text(process['bytes'])}" for process in others
    ]
    return ", ".join(parts)


def _spark(label: str, points: list[tuple[float, float]]) -> str:
    """Return a small curve from zero up to the highest value."""
    first, span = points[0][0], max(points[-1][0] - points[0][0], 1e-9)
    top = max(max(value for _, value in points), 1.0)
    points_text = " ".join(
        f"{2 + (WIDTH - 4) * (at - first) / span:.1f},{HEIGHT - 2 - (HEIGHT - 6) * value / top:.1f}"
        for at, value in points
    )
    about = f"{label} over {span:.0f} s: {size_text(int(points[-1][1]))} now, {size_text(int(top))} at the highest"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{escape(about)}">'
        f'<polyline points="{points_text}" fill="none" stroke="{ACCENT}" stroke-width="1.5" '
        'stroke-linejoin="round"/></svg>'
    )
