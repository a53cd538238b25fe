"""The run folder: its layout, its sentinels, and how both survive a crash; standard library only.

    runs/<time>-<slug>/
      config.yaml        everything needed to run it again
      environment.json   the readings of the machine at the start
      metrics.csv        one row a log step
      checkpoints/       best-...ckpt last.ckpt
      flight/            what a crash is explained with
      incident/          only after a failure
      .RUNNING -> .SUCCESS | .FAILURE

Private (config, sentinels, flight/, checkpoints/) means readable by its owner only.
"""

from __future__ import annotations

from ocrlab.run_folder.atomic_files import Table, write_bytes, write_json, write_text
from ocrlab.run_folder.exception_record import describe
from ocrlab.run_folder.folder import RunFolder, create, resume, run
from ocrlab.run_folder.status_file import list_runs, newest, now, status

__all__ = [
    "RunFolder",
    "Table",
    "create",
    "describe",
    "list_runs",
    "newest",
    "now",
    "resume",
    "run",
    "status",
    "write_bytes",
    "write_json",
    "write_text",
]
