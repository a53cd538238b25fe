"""`ocrlab memory fit`: the largest batch that fits, measured, and the settings that keep the effective batch."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocrlab.cli.parser import POSITIVE, Answer, Parser, number, reporter, table
from ocrlab.cli.train import check_config, load_config
from ocrlab.debug.memory import memory_limit
from ocrlab.records import SCHEMA

if TYPE_CHECKING:
    from ocrlab.config.schema import Config
    from ocrlab.debug.memory.fit_trials import MemoryTrial
    from ocrlab.debug.memory.largest_batch import Fit

MIB = memory_limit.MIB
report_progress = reporter("memory")
EXAMPLES = """
  ocrlab memory fit                                       the default settings on this machine
  ocrlab memory fit data=receipts crop=640 --limit 8      your pages, within 8 GB
  ocrlab memory fit experiment.yaml batch_size=32         reach an effective batch of 32, by accumulation if needed
"""


def arguments(parser: Parser) -> None:
    """Add the words of this command."""
    add_settings(parser)
    parser.add_argument(
        "--limit", type=float, metavar="GB", help="memory limit in GB, 10^9 bytes (default: what this process may use)"
    )
    parser.add_argument(
        "--margin",
        type=number(float, "a fraction of the limit, 0 or more, less than 1", lambda value: 0 <= value < 1),
        default=0.1,
        metavar="P",
        help="fraction of the limit to leave free (default: 0.1)",
    )
    parser.add_argument("--minutes", type=POSITIVE, default=5.0, metavar="M", help="maximum minutes (default: 5)")


def add_settings(parser: Parser) -> None:
    """Add the words that describe a config."""
    parser.add_argument(
        "settings", nargs="*", metavar="CONFIG.yaml|key=value", help="config file and settings, as for ocrlab train"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="config file; needed if its name contains =")


def run(args: argparse.Namespace) -> Answer:
    """Find the largest batch, and answer with the settings, the evidence, and what to change where nothing fits."""
    from ocrlab.debug.memory import largest_batch

    config = load_config(args)
    check_config(config)
    limit = memory_limit.find_limit(args.limit, cuda=on_cuda(config))
    report_progress(f"limit {limit_text(limit)}")
    with tempfile.TemporaryDirectory(prefix="ocrlab-fit-", ignore_cleanup_errors=True) as place:
        result = largest_batch.fit(
            config, Path(place), limit=limit, margin=args.margin, seconds=60 * args.minutes, report=report_progress
        )
    return Answer(record(result), text(result), 0 if result.batch else 1)


def on_cuda(config: Config) -> bool:
    """Return whether the training would run on a GPU: where it is left open, torch is asked in a child."""
    if config.trainer.accelerator != "auto":
        return config.trainer.accelerator == "cuda"
    code = "import torch; raise SystemExit(0 if torch.cuda.is_available() else 3)"
    if not Path("/dev/nvidiactl").exists() and not Path("/dev/dxg").exists():
        return False
    try:
        done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False, capture_output=True)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def record(result: Fit) -> dict[str, Any]:
    """Return a fit as a JSON-ready record."""
    return {
        "schema": SCHEMA,
        "status": "fits" if result.batch else "nothing fits" if result.proven == "batch + 1 fails" else "not measured",
        "batch": result.batch,
        "peak": result.peak,
        "limit": asdict(result.limit),
        "usable": result.usable,
        "settings": result.settings,
        "proven": result.proven,
        "most": result.most,
        "tries": [trial_record(trial) for trial in result.tries],
        "remedies": [trial_record(trial) for trial in result.remedies],
        "left_out": result.left_out,
        "estimate": {name: result.estimate.get(name) for name in ("parts", "peak", "slope", "offset", "settled")},
        "sentence": sentence(result),
    }


def trial_record(trial: MemoryTrial) -> dict[str, Any]:
    """Return a trial as a JSON-ready record, with its message in `told`."""
    names = ("batch", "fits", "peak", "phase", "message", "seconds", "crops_a_second", "changes", "long", "measured")
    return {"told" if name == "message" else name: getattr(trial, name) for name in names}


def text(result: Fit) -> str:
    """Return a fit as a person reads it."""
    rows = [("batch", "needs", "fits", "measured in", "crops a second", "changed settings")]
    for trial in [*result.tries, *result.remedies]:
        needed = "?" if not trial.measured else "died" if trial.peak is None else f"{trial.peak / MIB:,.0f} MiB"
        fits = "not measured" if not trial.measured else "yes" if trial.fits else "no"
        speed = f"{trial.crops_a_second:.1f}" if trial.fits else ""
        rows.append((str(trial.batch), needed, fits, trial.phase, speed, changes_text(trial)))
    left = [f"not tried: {name}: {why}" for name, why in result.left_out.items()]
    return "\n\n".join(filter(None, [table(rows), "\n".join(left), sentence(result), " ".join(result.settings)]))


def sentence(result: Fit) -> str:
    """Return what was found in one or two sentences."""
    limit = limit_text(result.limit)
    wanted = ""  # where less memory is free now than was asked about
    if result.limit.wanted and not result.limit.chosen:
        wanted = f" Only that of the {result.limit.wanted / MIB:,.0f} MiB of --limit is free now: run it again when "
        wanted += "more is."
    if result.batch:
        peak = f"{(result.peak or 0) / MIB:,.0f} MiB"
        why = {
            "batch + 1 fails": f"{result.batch + 1} does not fit",
            "close": "this is close to the limit, so larger batches were not tried",
            "most": f"more than {result.most} was not tried",
            "time": "the time ended before larger batches were tried; raise --minutes",
            "slow": f"a training with {result.batch + 1} did not finish in its time",
            "unverified": "the longer trial was not measured, so memory may keep growing: raise --minutes or --margin",
            "not measured": "larger batches were not measured, because other processes took the memory",
        }[result.proven]
        return f"batch_size={result.batch} fits: it needs {peak} of {limit}; {why}.{wanted}"
    if result.proven in ("time", "slow", "unverified"):
        return f"Not measured: the time ended before a batch fitted into {limit}; --minutes gives it more."
    if result.proven == "not measured":
        return f"Not measured: other processes took the memory before one crop fitted into {limit}.{wanted}"
    good = [remedy for remedy in result.remedies if remedy.fits]
    if not good:
        return f"Nothing fits into {limit}, not even one crop, and no change that was tried helps enough."
    needed = f"{(good[0].peak or 0) / MIB:,.0f} MiB"
    return f"Nothing fits into {limit}; with {changes_text(good[0])} one crop needs {needed}, and fits."


def changes_text(attempt: MemoryTrial) -> str:
    """Return what was set otherwise, as settings."""
    settings = [f"{key}={value}" for key, value in attempt.changes.items()]
    return " ".join([*settings, "(longer run)"] if attempt.long else settings)


def limit_text(limit: memory_limit.Limit) -> str:
    """Return a limit in words."""
    if limit.kind == "device" and not limit.chosen:
        return limit.source
    return f"{limit.bytes / MIB:,.0f} MiB ({limit.source})"
