"""`ocrlab memory fit`: the largest batch that fits, measured, and the settings that keep the effective batch."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocrlab.cli import train_preflight
from ocrlab.cli.parser import Answer, Parser, add_json, table
from ocrlab.cli.train import loaded
from ocrlab.debug.memory import memory_limit
from ocrlab.errors import ConfigError
from ocrlab.records import SCHEMA

if TYPE_CHECKING:
    from ocrlab.config.schema import Config
    from ocrlab.debug.memory.fit_trials import Try
    from ocrlab.debug.memory.largest_batch import Fit

MIB = memory_limit.MIB
EXAMPLES = """
  ocrlab memory fit                                       the defaults, on this machine
  ocrlab memory fit data=receipts crop=640 --limit 8      your pages, with 8 GB
  ocrlab memory fit experiment.yaml batch_size=32         the batch to reach; the answer accumulates up to it
"""


def arguments(parser: Parser) -> None:
    """Add the words of this command."""
    add_settings(parser)
    parser.add_argument("--limit", type=float, metavar="GB", help="10^9 bytes; by default what this process may have")
    parser.add_argument("--margin", type=float, default=0.1, metavar="P", help="part of it to leave free (0.1)")
    parser.add_argument("--minutes", type=float, default=5.0, metavar="M", help="to be done in (5)")
    add_json(parser)


def add_settings(parser: Parser) -> None:
    """Add the words that describe a config."""
    parser.add_argument("settings", nargs="*", metavar="CONFIG.yaml|key=value", help="as for ocrlab train")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the config file, where its name has a = in it")


def run(args: argparse.Namespace) -> Answer:
    """Find the largest batch, and answer with the settings, the evidence, and what to change where nothing fits."""
    from ocrlab.debug.memory import largest_batch

    if not 0 <= args.margin < 1:
        raise ConfigError("--margin is a part of the limit", got=args.margin, need="0 or more, less than 1")
    if not args.minutes > 0:
        raise ConfigError("--minutes is no time", got=args.minutes, need="minutes, more than 0")
    config = loaded(args)
    train_preflight.look_at(config)
    limit = memory_limit.find(args.limit, cuda=on_cuda(config))
    say(f"limit {words_of(limit)}")
    folder = Path(tempfile.mkdtemp(prefix="ocrlab-fit-"))
    try:
        found = largest_batch.fit(config, folder, limit=limit, margin=args.margin, seconds=60 * args.minutes, say=say)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Answer(record(found), text(found), 0 if found.batch else 1)


def on_cuda(config: Config) -> bool:
    """Tell whether the training would run on a GPU: where it is left open, torch is asked in a child."""
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


def record(found: Fit) -> dict[str, Any]:
    """Return a fit as a JSON-ready record."""
    kept = ("batch", "fits", "peak", "phase", "told", "seconds", "crops_a_second", "changes", "long")
    return {
        "schema": SCHEMA,
        "status": "fits" if found.batch else "nothing fits" if found.proven == "batch + 1 fails" else "not known",
        "batch": found.batch,
        "peak": found.peak,
        "limit": asdict(found.limit),
        "usable": found.usable,
        "settings": found.words,
        "proven": found.proven,
        "most": found.most,
        "tries": [{name: asdict(one)[name] for name in kept} for one in found.tries],
        "remedies": [{name: asdict(one)[name] for name in kept} for one in found.remedies],
        "left_out": found.left_out,
        "estimate": {name: found.estimate.get(name) for name in ("parts", "peak", "slope", "offset", "settled")},
        "sentence": sentence(found),
    }


def text(found: Fit) -> str:
    """Return a fit as a person reads it."""
    rows = [("batch", "needs", "fits", "in", "crops a second", "set otherwise")]
    for one in [*found.tries, *found.remedies]:
        held = f"{one.peak / MIB:,.0f} MiB" if one.peak is not None else "died"
        speed = f"{one.crops_a_second:.1f}" if one.fits else ""
        rows.append((str(one.batch), held, "yes" if one.fits else "no", one.phase, speed, said(one)))
    left = [f"not tried: {name}: {why}" for name, why in found.left_out.items()]
    return "\n\n".join(filter(None, [table(rows), "\n".join(left), sentence(found), " ".join(found.words)]))


def sentence(found: Fit) -> str:
    """Return what was found in one or two sentences."""
    limit = words_of(found.limit)
    if found.batch:
        peak = f"{(found.peak or 0) / MIB:,.0f} MiB"
        why = {
            "batch + 1 fails": f"{found.batch + 1} does not fit",
            "close": "that is close to the limit, and more was not tried",
            "pages": f"more than {found.most} was not tried: an epoch and the batch that was asked for have no more",
            "time": "the time was over before more was tried",
            "slow": f"a training with {found.batch + 1} was not done in its time",
        }[found.proven]
        return f"batch_size={found.batch} fits: it needs {peak} of {limit}; {why}."
    if found.proven in ("time", "slow"):
        return f"The time was over before a batch was found that fits into {limit}; give it more with --minutes."
    good = [one for one in found.remedies if one.fits]
    if not good:
        return f"Nothing fits into {limit}, not even one crop, and no change that was tried is enough."
    best = good[0]
    return f"Nothing fits into {limit}; with {said(best)} one crop needs {(best.peak or 0) / MIB:,.0f} MiB, and fits."


def said(one: Try) -> str:
    """Return what was set otherwise, as settings."""
    settings = [f"{key}={value}" for key, value in one.changes.items()]
    return " ".join([*settings, "for longer"] if one.long else settings)


def words_of(limit: memory_limit.Limit) -> str:
    """Return a limit in words."""
    if limit.kind == "device" and not limit.chosen:
        return limit.source
    return f"{limit.bytes / MIB:,.0f} MiB ({limit.source})"


def say(line: str) -> None:
    """Tell on stderr what is going on."""
    print(f"ocrlab memory: {line}", file=sys.stderr, flush=True)
