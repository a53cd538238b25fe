"""Progress as one block of HTML that is rewritten in place: a bar and the figures.

It takes the events of `train.fit`: {"kind": start|train|validate|measure|end, "step", "total", figures ...} and
{"kind": "warning", "text"}. What is done in several parts names what each of them counts by "unit". What it showed last
stays in the notebook.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from html import escape
from typing import Any

from ocrlab.reports.view import View, heading, load_css

EVERY = 0.5  # seconds between two updates; every one of them travels to the browser
TICK = 1.0  # seconds after which the clock has to move, though nothing else does
FIGURES = {"loss": ".3f", "hmean@0.5": ".3f", "images_per_second": ".1f"}
PHASES = {"start": "training", "train": "training", "validate": "training", "measure": "measuring"}

CSS = load_css("progress")


class Live:
    """Call it with events; `show` gets a View at most twice a second, and the last one when `flush` is called."""

    def __init__(self, title: str, show: Callable[[View], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.title, self.show, self.clock = title, show, clock
        self.began = self.shown = clock()
        self.phase, self.step, self.total, self.first = "preparing", 0, 0, 0
        self.unit = ""  # what is counted, where the event says it
        self.counts: dict[str, str] = {}  # how far each such unit has come
        self.stepping = self.began  # when the first step of this phase began
        self.figures: dict[str, float] = {}
        self.warnings: list[str] = []
        self.trained = False  # else it counts pages
        self.fresh = True  # something that was not shown yet
        self.flush()

    def __call__(self, event: dict[str, Any]) -> None:
        """Take one event, and show it if it is time to."""
        kind = event["kind"]
        if kind == "warning":
            self.warnings.append(str(event["text"]))
        elif "step" in event:
            phase, unit = PHASES.get(kind, kind), str(event.get("unit", ""))
            self.trained = self.trained or phase == "training"
            if (phase, unit) != (self.phase, self.unit):
                self.first, self.stepping = int(event["step"]), self.clock()
            self.phase, self.step, self.total, self.unit = phase, int(event["step"]), int(event["total"]), unit
            if unit:
                self.counts[unit] = f"{self.step} of {self.total}"
            self.figures |= {name: value for name, value in event.items() if isinstance(value, float)}
        self.fresh = True
        if kind in ("end", "start") or self.clock() - self.shown >= EVERY:
            self.flush()

    def flush(self) -> None:
        """Show what is known now, unless it is on the screen already."""
        if self.fresh:
            self.fresh, self.shown = False, self.clock()
            self.show(self.view())

    def tick(self) -> None:
        """Let the clock move: show the block again where nothing has for a second, unless it is at its end."""
        if self.phase != "end" and self.clock() - self.shown >= TICK:
            self.fresh = True
            self.flush()

    def view(self) -> View:
        """Return the block as it is now."""
        done = self.phase == "end"
        share = 100 if done else 100 * self.step / self.total if self.total else 0
        pairs = self._pairs()
        figures = "".join(f"<span><span>{escape(name)}</span><b>{escape(text)}</b></span>" for name, text in pairs)
        html = (
            f"<style>{CSS}</style>{heading(self.title)}"
            f'<div class="bar{" done" if done else ""}" role="progressbar" aria-valuemin="0" aria-valuemax="100" '
            f'aria-valuenow="{share:.0f}"><i style="width:{share:.1f}%"></i></div><div class="figures">{figures}</div>'
            + "".join(f'<p class="warning">⚠ {escape(text)}</p>' for text in self.warnings[-5:])
        )
        return View(html, f"{self.title}: " + ", ".join(f"{name} {text}" for name, text in pairs))

    def _pairs(self) -> list[tuple[str, str]]:
        """Return how far it has come, the newest figures, and the times, each with its name."""
        now, done = self.clock(), self.phase == "end"
        unit = self.unit or ("page" if self.phase == "measuring" or not self.trained else "step")
        pairs = [(unit, f"{self.step} of {self.total}")] if self.total else [] if done else [(self.phase, "…")]
        if done and self.counts:
            pairs = list(self.counts.items())
        newest = ((name, form, self.figures[name]) for name, form in FIGURES.items() if name in self.figures)
        pairs += [(name.replace("_", " "), f"{value:{form}}") for name, form, value in newest]
        pairs.append(("took" if done else "so far", duration(now - self.began)))
        steps = self.step - self.first
        if self.phase in ("training", "measuring") and steps > 0 and self.step < self.total:
            pairs.append(("left, about", duration((now - self.stepping) / steps * (self.total - self.step))))
        return pairs


def duration(seconds: float) -> str:
    """Return seconds as m:ss or h:mm:ss."""
    minutes, second = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{second:02d}" if hours else f"{minutes}:{second:02d}"
