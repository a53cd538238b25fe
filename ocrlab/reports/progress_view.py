"""Progress as one block of HTML that is rewritten in place: a bar, the figures, and two small curves.

It takes the events of `train.fit`: {"kind": start|train|validate|measure|end, "step", "total", figures ...} and
{"kind": "warning", "text"}. What is done in several parts names what each of them counts by "unit". What it showed last
stays in the notebook.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from ocrlab.reports.view import ACCENT, GOOD, LINE, View, heading, load_css

EVERY = 0.5  # seconds between two updates; every one of them travels to the browser
TICK = 1.0  # seconds after which the clock has to move, though nothing else does
WIDTH, HEIGHT = 300, 76  # of a small curve, in its own units
MOST = 240  # points drawn in a small curve
SCORE = "hmean@0.5"
FIGURES = {"loss": ("loss", ".3f"), SCORE: (SCORE, ".3f"), "images_per_second": ("images a second", ".1f")}
PHASES = {"start": "training", "train": "training", "validate": "training", "measure": "measuring"}

CSS = load_css("progress")


class Live:
    """Call it with events; `show` gets a View at most twice a second, and the last one when `flush` is called."""

    def __init__(
        self,
        title: str,
        show: Callable[[View], None],
        *,
        limit: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.title, self.show, self.limit, self.clock = title, show, limit, clock
        self.began = self.shown = clock()
        self.phase, self.step, self.total, self.first = "preparing", 0, 0, 0
        self.unit = ""  # what is counted, where the event says it
        self.counts: dict[str, str] = {}  # how far each such unit has come
        self.stepping = self.began  # when the first step of this phase began
        self.figures: dict[str, float] = {}
        self.curves: dict[str, list[tuple[float, float]]] = {"loss": [], SCORE: []}
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
            self._move(kind, int(event["step"]), int(event["total"]), str(event.get("unit", "")))
            self.figures |= {name: value for name, value in event.items() if isinstance(value, float)}
            for name, points in self.curves.items():
                if isinstance(event.get(name), float) and (not points or points[-1][0] < event["step"]):
                    points.append((event["step"], event[name]))
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

    def _move(self, kind: str, step: int, total: int, unit: str) -> None:
        phase = PHASES.get(kind, kind)
        self.trained = self.trained or phase == "training"
        if (phase, unit) != (self.phase, self.unit):
            self.first, self.stepping = step, self.clock()
        self.phase, self.step, self.total, self.unit = phase, step, total, unit
        if unit:
            self.counts[unit] = f"{step} of {total}"

    def view(self) -> View:
        """Return the block as it is now."""
        done = self.phase == "end"
        share = 1.0 if done else self.step / self.total if self.total else 0.0
        pairs = [*self._figures()]
        figures = "".join(f"<span><span>{escape(name)}</span><b>{escape(text)}</b></span>" for name, text in pairs)
        long_curves = {name: points for name, points in self.curves.items() if len(points) > 1}
        limits = {SCORE: self.limit}
        svgs = (curve(points, name, limits.get(name)) for name, points in long_curves.items())
        curves = "".join(f'<div class="spark">{svg}</div>' for svg in svgs)
        html = (
            f"<style>{CSS}</style>{heading(self.title)}"
            f'<div class="bar{" done" if done else ""}" role="progressbar" aria-valuemin="0" aria-valuemax="100" '
            f'aria-valuenow="{100 * share:.0f}"><i style="width:{100 * share:.1f}%"></i></div>'
            f'<div class="figures">{figures}</div><div class="row">{curves}</div>'
            + "".join(f'<p class="warning">⚠ {escape(text)}</p>' for text in self.warnings[-5:])
        )
        return View(html, f"{self.title}: " + ", ".join(f"{name} {text}" for name, text in pairs))

    def _figures(self) -> Sequence[tuple[str, str]]:
        now = self.clock()
        unit = self.unit or ("page" if self.phase == "measuring" or not self.trained else "step")
        where = f"{self.step} of {self.total}" if self.total else "…"
        pairs = [(unit if self.total else self.phase, where)] if self.total or self.phase != "end" else []
        if self.phase == "end" and self.counts:
            pairs = list(self.counts.items())
        shown = ((label, form, self.figures.get(name)) for name, (label, form) in FIGURES.items())
        pairs += [(label, f"{value:{form}}") for label, form, value in shown if value is not None]
        pairs.append(("took" if self.phase == "end" else "so far", duration(now - self.began)))
        steps = self.step - self.first
        if self.phase in ("training", "measuring") and steps > 0 and self.step < self.total:
            pairs.append(("left, about", duration((now - self.stepping) / steps * (self.total - self.step))))
        return pairs


def duration(seconds: float) -> str:
    """Return seconds as m:ss or h:mm:ss."""
    minutes, second = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{second:02d}" if hours else f"{minutes}:{second:02d}"


def curve(points: Sequence[tuple[float, float]], name: str, limit: float | None = None) -> str:
    """Return a small SVG curve of (step, value) points with its range at the left and, if given, a line at `limit`."""
    stride = -(-len(points) // MOST)
    sampled = [*points[::stride], *points[-1:]]
    values = [value for _, value in sampled if value == value]
    if not values:
        return ""
    low, high = (0.0, 1.0) if limit is not None else (min(0.0, min(values)), max(values))
    start, stop = sampled[0][0], sampled[-1][0]

    def place(step: float, value: float) -> tuple[float, float]:
        across = (step - start) / ((stop - start) or 1)
        return 34 + across * (WIDTH - 40), 8 + (1 - (value - low) / ((high - low) or 1)) * (HEIGHT - 26)

    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in sampled if point[1] == point[1]))
    x, y = place(stop, values[-1])
    top, bottom = place(start, high)[1], place(start, low)[1]
    mark = ""
    if limit is not None:
        at = place(start, limit)[1]
        mark = f'<path d="M34 {at:.1f}H{WIDTH - 6}" stroke="{GOOD}" stroke-dasharray="4 3" fill="none"/>'
    range_text = f"between {min(values):.3g} and {max(values):.3g}"
    label = f"{name} from step {start:g} to {stop:g}: {values[-1]:.3g} at last, {range_text}"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}" font-size="9.5" '
        'fill="currentColor">'
        f'<path d="M34 {top}V{bottom}H{WIDTH - 6}" stroke="{LINE}" fill="none"/>{mark}'
        f'<polyline points="{line}" fill="none" stroke="{ACCENT}" stroke-width="1.6" stroke-linejoin="round"/>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{ACCENT}"/>'
        f'<text x="30" y="{top + 3:.1f}" text-anchor="end">{high:.3g}</text>'
        f'<text x="30" y="{bottom + 1:.1f}" text-anchor="end">{low:.3g}</text>'
        f'<text x="34" y="{HEIGHT - 5}">{escape(name)}</text>'
        f'<text x="{WIDTH - 6}" y="{HEIGHT - 5}" text-anchor="end">step {stop:g}</text></svg>'
    )
