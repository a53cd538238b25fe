"""torchrun's own agent for `ocrlab train WORDS` on this machine.

`python -m ocrlab.training.distributed.launch N LOGS WORDS...` starts N ranks. It differs from `torchrun --standalone
--nproc-per-node N -m ocrlab train WORDS` in how it ends: one line says which rank failed, in place of a traceback of
the launcher, and its exit status is that of the rank.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ocrlab.hardware import host
from ocrlab.hardware.processes import exit_codes
from ocrlab.run_folder import launcher, watcher_link

PROGRAM = ["-m", "ocrlab", "train"]


def main(words: list[str]) -> int:
    """Start the ranks, wait for them, and return the exit status of the first one that failed, or 0."""
    count, logs, *rest = words
    threads = max(1, host.cores() // int(count))
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # a pool of all cores in each rank is ten times slower
    config, program, args = configure_launch(int(count), logs, rest)
    try:
        elastic_launch(config, program)(*args)
    except ChildFailedError as error:
        return report_failures(error.failures)
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


def configure_launch(
    count: int, logs: str, words: list[str]
) -> tuple[LaunchConfig, Callable[..., Any] | str, list[str]]:
    """Return what starts the ranks as `torchrun --standalone` does; all but rank 0 say `[default1]:` before a line."""
    own = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", str(uuid.uuid4())]
    own += ["--local-addr", "127.0.0.1", "--nproc-per-node", str(count)]
    config, program, args = run.config_from_args(run.parse_args([*own, *PROGRAM, *words]))
    # Rank 0 keeps the terminal and its progress bar. The syntax of --tee has no rank above 9.
    config.logs_specs = DefaultLogsSpecs(log_dir=logs, tee=dict.fromkeys(range(1, count), Std.ALL))
    return config, program, args


def report_failures(failures: dict[int, ProcessFailure]) -> int:
    """Record how each rank has ended, print it of the first one, and return its exit status as a shell would."""
    rows = [{"rank": rank, "exit_code": end.exitcode, "pid": end.pid} for rank, end in failures.items()]
    launcher.report_exits(rows)
    folder = os.environ.get(watcher_link.FOLDER)
    blamed = launcher.blamed(launcher.read(Path(folder))) if folder else 0  # by what the ranks have reported
    # A killed rank comes first: it has left no report. All ranks may have met the same error, which names its rank.
    rank = min(failures, key=lambda rank: (failures[rank].exitcode >= 0, rank != blamed, rank))
    code, pid = failures[rank].exitcode, failures[rank].pid
    how = f"was killed by {exit_codes.signal_name(-code)}" if code < 0 else f"ended with exit status {code}"
    print(f"ocrlab: rank {rank} (process {pid}) {how}; the other ranks were ended", file=sys.stderr, flush=True)
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
