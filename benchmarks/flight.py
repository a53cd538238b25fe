"""Does the flight recorder tell the truth, does a replay name what failed, and what do both cost? One table.

Deaths at random moments, losses compared bit for bit, faults planted by seed, programs bisected, costs, notebooks.
Each row starts programs of its own; `--only kills faults` picks rows, `--pick segfault loop` picks among the faults.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import table

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ("01_sanity", "04_layers", "05_loader")
Row = tuple[str, str, str, bool | None]  # what, must, measured, met; None where it could not be measured


def main() -> int:
    """Run the rows and return the exit status."""
    options = arguments()
    rows: list[Row] = []
    details: list[str] = []
    for name, measure in ROWS.items():
        if options.only and name not in options.only:
            continue
        begin = time.monotonic()
        try:
            rows += measure(options, details)
        except Exception as error:  # a part that is not there, or breaks, is a row that missed
            rows.append((name, "", f"not measured: {type(error).__name__}: {error}"[:200], None))
        print(f"{name}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    for what, must, measured, _ in rows:
        table.figure(what, measured, "as in the text", limit=must)
    body = table.markdown(("what", "must", "measured", ""), [(*row[:3], table.judged(row[3])) for row in rows])
    page = table.page("Flight recorder, replay, bisect, hooks", "\n\n".join([body, *details]))
    table.publish("flight", page, options)
    return int(any(row[3] is not True for row in rows))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = table.parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=list(ROWS), help="these rows")
    parser.add_argument("--pick", nargs="+", default=[], help="of the faults only those with one of these words")
    parser.add_argument("--seeds", type=int, default=3, help="of the planted faults (default 3)")
    parser.add_argument("--rounds", type=int, default=100, help="deaths, and losses compared (default 100)")
    parser.add_argument("--smoke", action="store_true", help="little of each row, to see whether it runs")
    parser.add_argument("--keep", type=Path, help="leave the runs of faults and losses in this folder")
    options = parser.parse_args()
    if options.smoke:
        options.seeds, options.rounds = 1, 3
    return options


def kills(options: argparse.Namespace, details: list[str]) -> list[Row]:
    """Deaths at random moments."""
    import flight_kills

    score = flight_kills.rounds(options.rounds, 0)
    steps = (
        f"{score.steps} steps ({score.late} after the 64th), {score.losses} losses compared, {score.states} learning"
    )
    steps += f" rates and random states, {score.torn} torn"
    ring = f"{score.right} of {score.rounds}; {steps}"
    workers = f"{score.workers} of {score.rounds}; {score.between} workers were seen between two samples"
    details += [f"Wrong after a death: {dict(score.wrong)}"] if score.wrong else []
    return [
        ("ring readable and right after SIGKILL, SIGSEGV, _exit", "all", ring, score.right == score.rounds),
        ("current sample of each worker known", "all", workers, score.workers == score.rounds and score.between <= 3),
        ("recorded phase fits", "-", f"{score.phases} of {score.rounds}", score.phases == score.rounds),
    ]


def losses(options: argparse.Namespace, details: list[str]) -> list[Row]:
    """Replayed losses against those of the run."""
    import flight_replays

    settings = flight_replays.SETTINGS[:1] if options.smoke else flight_replays.SETTINGS
    comparison = flight_replays.losses(settings, options.keep)
    details += comparison.notes
    what = "replayed loss equal bit for bit (dropout, augmentation, workers, accumulation, EMA)"
    met = comparison.steps >= options.rounds and comparison.equal == comparison.steps
    return [(what, "all", f"{comparison.equal} of {comparison.steps} recorded steps", met)]


def faults(options: argparse.Namespace, details: list[str]) -> list[Row]:
    """Planted faults."""
    import flight_replays as replays

    chosen = replays.cases(options.seeds, options.pick)
    if options.smoke:
        chosen = chosen[:1]
    results = replays.faults(chosen, options.keep)
    right = sum(map(replays.complete, results))
    slowest = max((result.seconds for result in results), default=0.0)
    header = ("fault", "runs", "module", "op", "sample", "phase", "all three in time", "slowest")
    details.append(table.markdown(header, replays.summary(results)))
    details += [f"- {replays.line(result)}" for result in results if not replays.complete(result)]
    measured = f"{right} of {len(results)}; slowest {slowest:.0f} s"
    what = f"planted faults over {options.seeds} seeds: module, op, sample"
    return [(what, "every one, 60 s", measured, bool(results) and right == len(results))]


def keeping(options: argparse.Namespace, details: list[str]) -> list[Row]:
    """Faults that depend on what the program keeps."""
    import flight_keeping

    return [flight_keeping.row(options.smoke, details)]


def bisect(options: argparse.Namespace, details: list[str]) -> list[Row]:
    """Failing programs bisected."""
    import flight_bisect

    return flight_bisect.rows(options, details)


def cost(options: argparse.Namespace, details: list[str]) -> list[Row]:
    """What recorder and snapshots cost."""
    import flight_cost

    flight_cost.torch.set_num_threads(1)
    rounds = 6 if options.smoke else 450
    quiet, every = flight_cost.recorder(rounds)
    share, count = flight_cost.snapshots(100 if options.smoke else 6000)
    loaders = [(f"DataLoader, {n} workers", flight_cost.cost(flight_cost.switched(rounds // 6, n))) for n in (0, 2)]
    for name, result in (("quiet", quiet), ("all", every), *loaders):
        details.append(
            f"Recorder in {result.rounds} rounds ({name}) of {result.step * 1e3:.1f} ms a step, us: median"
            f" {result.median * 1e6:.0f}, mean {result.mean * 1e6:.0f} (standard error {result.error * 1e6:.0f}),"
            f" CPU {result.cpu * 1e6:.0f}; turns without it differ by {result.nothing * 1e6:.0f}."
        )
    text = (
        f"median {every.median * 1e3:+.3f}, mean {every.mean * 1e3:+.3f} ms (error {every.error * 1e3:.3f}) of"
        f" {every.step * 1e3:.1f} in {every.rounds} rounds; {quiet.median * 1e3:+.3f}, {quiet.mean * 1e3:+.3f}"
        f" ({quiet.error * 1e3:.3f}) in {quiet.rounds} quiet ones"
    )
    loaded = " / ".join(f"{result.median * 1e3:+.3f} (error {result.error * 1e3:.3f})" for _, result in loaders)
    return [
        ("recorder cost, batches that are ready", "0.30 ms (median, quiet)", text, quiet.median <= 3e-4),
        ("recorder cost, a DataLoader with 0 / 2 workers", "- / 0.50 ms", f"{loaded} ms", loaders[1][1].median <= 5e-4),
        ("adaptive snapshots lengthen the run by", "1 %", f"{share:+.2%}; {count} snapshots", share <= 0.01),
    ]


def hooks(options: argparse.Namespace, details: list[str]) -> list[Row]:
    """What hooks with statistics cost, as layers.py measures it."""
    import layers

    size, rounds, threads = (64, 1, 1) if options.smoke else (320, 16, 2)
    step, model = layers.watched_step(size, threads)
    step()
    settings = argparse.Namespace(size=size, rounds=rounds, threads=threads)
    met, text = layers.report(layers.measure(step, model, rounds), settings)
    details.append(text)
    shares = ", ".join(re.findall(r"[+-]\d+\.\d+ %", text))
    return [("hooks on decoder.fusion, on all modules, statistics every 10 steps", "1 %, 10 %", shares, met)]


def notebooks(options: argparse.Namespace, _details: list[str]) -> list[Row]:
    """Notebooks with their defaults."""
    rows: list[Row] = []
    for name in NOTEBOOKS[:1] if options.smoke else NOTEBOOKS:
        with tempfile.TemporaryDirectory(prefix="ocrlab-bench-") as folder:
            out = Path(folder, "out.ipynb")
            command = [sys.executable, "-m", "papermill", str(ROOT / "notebooks" / f"{name}.ipynb"), str(out)]
            begin = time.monotonic()
            done = subprocess.run(command, capture_output=True, cwd=folder, timeout=240, check=False)
            seconds = time.monotonic() - begin
        text = f"{seconds:.0f} s" + ("" if done.returncode == 0 else f", exit status {done.returncode}")
        rows.append((f"notebook {name} with defaults", "30 s", text, done.returncode == 0 and seconds <= 30))
    return rows


ROWS: dict[str, Callable[[argparse.Namespace, list[str]], list[Row]]] = {
    "kills": kills,
    "losses": losses,
    "faults": faults,
    "keeping": keeping,
    "bisect": bisect,
    "cost": cost,
    "hooks": hooks,
    "notebooks": notebooks,
}

if __name__ == "__main__":
    sys.exit(main())
