"""How good is the default training on real receipts, from random weights, on this machine?

    python benchmarks/receipts.py --data ../shared/data/sroie                       trains, then reports
    python benchmarks/receipts.py --run runs/NAME --data ../shared/data/sroie       reports a finished run

Minutes are wall time in fit with data and without validation, on a machine that does nothing else. The curve is drawn
as SVG beside the saved table.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import runs
import table
from runs import Run
from table import judged, markdown, page, parser, portable, publish

MINUTES, EARLY = 40.0, 10.0
LIMITS = {"hmean@0.5": 0.93, "hmean@0.7": 0.79}  # within MINUTES
EARLY_LIMIT = 0.85  # hmean@0.5 within EARLY
CURVES = ("hmean@0.5", "hmean@0.7", "hmean@0.8")


def main() -> None:
    """Report a run, and end with 1 where a limit is not met."""
    args = arguments()
    run = runs.read(args.run) if args.run else runs.train([f"data={args.data}", "name=receipts", *args.settings])
    met, body = report(run, args.data)
    date = run.ended[:10]
    body += f"\n\n![curve]({date}-receipts.svg)" if args.save else ""
    text = page("Real receipts, from scratch", body, environment=run.environment, date=date)
    path = publish("receipts", text, args, environment=run.environment, date=date)
    if path is not None:
        draw(run, path.with_suffix(".svg"))
    sys.exit(0 if met else 1)


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    command = parser(__doc__)
    command.add_argument("--data", required=True, help="the folder with train/ and val/ that was or is trained on")
    command.add_argument("--run", type=Path, metavar="RUN", help="a finished run folder; without it, train now")
    command.add_argument("settings", nargs="*", metavar="key=value", help="for the training that is started")
    return command.parse_intermixed_args()


def report(run: Run, data: str) -> tuple[bool, str]:
    """Return whether the limits are met, and the text with curve and final figures."""
    curve = points(run)
    header = ("minutes", "steps", "CPU seconds", "pages", *CURVES)
    checks = limits(run, curve)
    lines = [
        f"Trained with `{runs.command(run, portable(data))}` ({runs.choices(run)}).",
        "",
        markdown(header, [row(point) for point in curve]),
        "",
        *final(run),
        "",
        markdown(("limit", "reached", ""), [(text, value, judged(ok)) for text, value, ok in checks]),
    ]
    return all(ok for *_, ok in checks), "\n".join(lines)


def points(run: Run) -> list[dict[str, float]]:
    """Return the rows of metrics.csv that hold a validation, each with its `minutes` of training, one a step."""
    whole = run.metrics.get("fit_seconds", 0.0)  # the validation after the end has no time of its own
    rows = {row["step"]: row for row in run.rows if CURVES[0] in row}
    return [rows[step] | {"minutes": rows[step].get("fit_seconds", whole) / 60} for step in sorted(rows)]


def row(point: dict[str, float]) -> tuple[str, ...]:
    """Return the cells of one validation."""
    figures = (figure(point.get(name)) for name in CURVES)
    clock = (f"{point['minutes']:.1f}", f"{point['step']:.0f}", figure(point.get("cpu_seconds"), 0))
    return (*clock, figure(point.get("pages"), 0), *figures)


def figure(value: float | None, digits: int = 4) -> str:
    """Return a figure as text, a dash where it was not recorded."""
    return "-" if value is None else f"{value:.{digits}f}"


def final(run: Run) -> list[str]:
    """Return the figures of the kept checkpoint as lines of text."""
    pages, steps, cpu = (figure(run.figure(name), 0) for name in ("pages", "steps", "cpu_seconds"))
    minutes = (run.figure("fit_seconds") or 0.0) / 60
    kinds = ("hmean", "precision", "recall")
    rows = [(t, *(figure(run.metrics.get(f"{kind}@{t}")) for kind in kinds)) for t in ("0.5", "0.7", "0.8")]
    head = (
        f"Best checkpoint, on {pages} val pages: {steps} steps, {minutes:.1f} minutes of training, CPU seconds {cpu}."
    )
    return [head, "", markdown(("IoU", *kinds), rows)]


def limits(run: Run, curve: list[dict[str, float]]) -> list[tuple[str, str, bool]]:
    """Return every limit as (text, what was reached, met)."""
    minutes = run.metrics.get("fit_seconds", math.inf) / 60
    checks = []
    table.figure("training", 60 * minutes, "s", limit=f"<= {60 * MINUTES:g}")
    for name, least in LIMITS.items():
        reached = run.metrics.get(name, 0.0)
        table.figure(name, reached, "hmean", limit=f">= {least}")
        met = minutes <= MINUTES and reached >= least
        checks.append((f"{name} {least} within {MINUTES:.0f} minutes", f"{reached:.4f} after {minutes:.1f}", met))
    early = [point for point in curve if point["minutes"] <= EARLY][-1:]
    early_text = "".join(f"{p[CURVES[0]]:.4f} after {p['minutes']:.1f}" for p in early) or "no validation by then"
    met = any(point[CURVES[0]] >= EARLY_LIMIT for point in early)
    return [*checks, (f"{CURVES[0]} {EARLY_LIMIT} within {EARLY:.0f} minutes", early_text, met)]


def draw(run: Run, path: Path) -> None:
    """Draw the curves over minutes of training as SVG, the same bytes for the same run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    curve = points(run)
    with pyplot.rc_context({"svg.hashsalt": "ocrlab", "svg.fonttype": "none", "font.size": 10}):
        drawing, axes = pyplot.subplots(figsize=(7, 4))
        for name in CURVES:
            validations = [p for p in curve if name in p]
            axes.plot(
                [p["minutes"] for p in validations],
                [p[name] for p in validations],
                marker="o",
                markersize=3,
                label=name,
            )
        axes.plot([MINUTES, EARLY], [LIMITS["hmean@0.5"], EARLY_LIMIT], "k_", markersize=14, label="needed @0.5")
        axes.set(xlabel="minutes of training", ylabel="val", ylim=(0, 1), title="Real receipts, from scratch")
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
        drawing.savefig(path, format="svg", metadata={"Date": None}, bbox_inches="tight")
        pyplot.close(drawing)


if __name__ == "__main__":
    main()
