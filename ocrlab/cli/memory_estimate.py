"""`ocrlab memory estimate`: what a training will need, part by part, before it is started."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from ocrlab.cli import train_preflight
from ocrlab.cli.memory_fit import add_settings, on_cuda, report_progress
from ocrlab.cli.parser import Answer, Parser, table
from ocrlab.cli.train import load_config
from ocrlab.debug.memory import memory_limit
from ocrlab.records import SCHEMA

SECONDS = 120.0
EXAMPLES = """
  ocrlab memory estimate                                  the default settings
  ocrlab memory estimate data=receipts batch_size=16
  ocrlab memory estimate crop=640 batch_size=16 trainer.precision=bf16
"""


def arguments(parser: Parser) -> None:
    """Add the words of this command."""
    add_settings(parser)


def run(args: argparse.Namespace) -> Answer:
    """Answer with the parts in bytes; a child imports torch, takes fake tensors, and trains nothing."""
    from ocrlab.config import schema as configs
    from ocrlab.debug.memory import largest_batch
    from ocrlab.debug.memory.fit_trials import TrialRunner

    config = load_config(args)
    train_preflight.check_config(config)
    limit = memory_limit.find_limit(None, cuda=on_cuda(config))
    with tempfile.TemporaryDirectory(prefix="ocrlab-estimate-", ignore_cleanup_errors=True) as place:
        configs.save(config, Path(place) / "config.yaml")
        runner = TrialRunner(config, Path(place), limit, 0.0, time.monotonic() + SECONDS, report_progress)
        estimate = largest_batch.estimate(runner)
    return Answer({"schema": SCHEMA, **estimate}, text(estimate, config.batch_size))


def text(estimate: dict[str, Any], batch: int) -> str:
    """Return an estimate as a person reads it."""
    rows = [(name, f"{size / memory_limit.MIB:,.1f} MiB") for name, size in estimate["parts"].items() if size]
    rows += [("total, without imports", f"{estimate['peak'] / memory_limit.MIB:,.1f} MiB")]
    inside = f"in {estimate['module']} ({estimate['phase']})" if estimate["module"] else "outside the model"
    where = "in validation" if estimate["phase"] == "validation" else inside
    more = (
        f"With batch_size={batch}, memory peaks {where}; each further crop takes {estimate['slope'] / 2**20:,.1f} MiB."
    )
    return f"{table(rows)}\n\n{more}"
