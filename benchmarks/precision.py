"""Does bf16 converge as fp32 does? The same training twice, same seed and steps, only the number format differs.

python benchmarks/precision.py --data ../shared/data/sroie                    300 steps each
python benchmarks/precision.py --data data_samples --steps 4 --every 2        does it run at all
"""

from __future__ import annotations

import argparse

import runs
from runs import Run
from table import figure, markdown, page, parser, publish

FIGURES = ("hmean@0.5", "hmean@0.7", "hmean@0.8")


def main() -> None:
    """Train twice and print both loss curves side by side."""
    args = arguments()
    common = [f"data={args.data}", f"runs={args.runs}", f"seed={args.seed}", "runtime.channels_last=true"]
    common += [
        f"trainer.max_steps={args.steps}",
        f"trainer.val_every={args.steps}",
        f"trainer.log_every={min(args.every, args.steps)}",
    ]
    half, full = (
        runs.train([*common, *args.settings, f"trainer.precision={precision}", f"name=precision-{precision}"])
        for precision in ("bf16", "fp32")
    )
    publish("precision", page("bf16 against fp32", report(half, full)), args)


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    options = parser(__doc__)
    options.add_argument("--data", required=True, help="the folder with train/ and val/")
    options.add_argument("--steps", type=int, default=300, help="optimizer steps of each training (default 300)")
    options.add_argument(
        "--every", type=int, default=25, help="steps a row of the table, a mean over them (default 25)"
    )
    options.add_argument("--seed", type=int, default=0, help="of both trainings (default 0)")
    options.add_argument("--runs", default="runs/benchmarks", help="where the run folders go (default runs/benchmarks)")
    options.add_argument("settings", nargs="*", metavar="key=value", help="for both trainings")
    return options.parse_intermixed_args()


def report(half: Run, full: Run) -> str:
    """Return both loss curves and the final figures, bf16 and fp32 side by side."""
    left, right = losses(half), losses(full)
    rows = [(f"{step:.0f}", f"{left[step]:.4f}", f"{right[step]:.4f}", gap(left[step], right[step])) for step in left]
    late = [step for step in left if step > max(left) / 2]
    means = [sum(curve[step] for step in late) / len(late) for curve in (left, right)]
    ends = [(name, half.metrics[name], full.metrics[name]) for name in FIGURES]
    ends.append(("loss, mean of the second half", means[0], means[1]))
    for name, a, b in ends:
        figure(f"{name}, bf16", a, "as named")
        figure(f"{name}, fp32", b, "as named")
    final = [(name, f"{a:.4f}", f"{b:.4f}", gap(a, b)) for name, a, b in ends]
    seconds = [run.figure("fit_seconds") or 0.0 for run in (half, full)]
    lines = [
        "Mean training loss since the row before:",
        "",
        markdown(("step", "bf16", "fp32", "difference"), rows),
        "",
        markdown(("at the end", "bf16", "fp32", "difference"), final),
        "",
        f"Training took {seconds[0]:.0f} s in bf16, {seconds[1]:.0f} s in fp32.",
    ]
    return "\n".join(lines)


def losses(run: Run) -> dict[float, float]:
    """Return the training loss by step."""
    return {row["step"]: row["loss"] for row in run.rows if "loss" in row}


def gap(half: float, full: float) -> str:
    """Return how far bf16 is from fp32, in percent of fp32."""
    return f"{100 * (half - full) / full:+.1f} %" if full else "-"


if __name__ == "__main__":
    main()
