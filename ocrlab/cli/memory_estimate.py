"""`ocrlab memory estimate`: what a training will need, part by part, before it is started."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from ocrlab import run_folder
from ocrlab.cli.memory_fit import add_settings, on_cuda, report_progress
from ocrlab.cli.parser import Answer, table
from ocrlab.cli.train import check_config, load_config
from ocrlab.debug.memory import memory_limit
from ocrlab.records import SCHEMA

SECONDS = 120.0
EXAMPLES = """
  ocrlab memory estimate                                  the default settings
  ocrlab memory estimate data=receipts batch_size=16
  ocrlab memory estimate crop=640 batch_size=16 trainer.precision=bf16
"""


arguments = add_settings


def run(args: argparse.Namespace) -> Answer:
    """Answer with the parts in bytes; a child imports torch, takes fake tensors, and trains nothing."""
    from ocrlab.config import schema as configs
    from ocrlab.debug.memory import largest_batch
    from ocrlab.debug.memory.fit_trials import TrialRunner

    config = load_config(args)
    check_config(config)
    limit = memory_limit.find_limit(None, cuda=on_cuda(config))
    with tempfile.TemporaryDirectory(prefix="ocrlab-estimate-", ignore_cleanup_errors=True) as place:
        run_folder.write_text(Path(place) / "config.yaml", configs.dump(config), private=True)
        runner = TrialRunner(config, Path(place), limit, 0.0, time.monotonic() + SECONDS, report_progress)
        estimate = largest_batch.estimate(runner)
    parts = {name: size for name, size in estimate["parts"].items() if size}
    parts["total, without imports"] = estimate["peak"]
    rows = table([(name, f"{size / memory_limit.MIB:,.1f} MiB") for name, size in parts.items()])
    where = f"in {estimate['module']} ({estimate['phase']})" if estimate["module"] else "outside the model"
    where = "in validation" if estimate["phase"] == "validation" else where
    crop = f"each further crop takes {estimate['slope'] / memory_limit.MIB:,.1f} MiB"
    text = f"{rows}\n\nWith batch_size={config.batch_size}, memory peaks {where}; {crop}."
    return Answer({"schema": SCHEMA, **estimate}, text)
