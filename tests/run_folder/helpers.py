"""A run whose process still runs."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def living_run(runs: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """Start a process that makes a run folder and waits; it is killed after the block."""
    code = f"import ocrlab.run_folder as f; print(f.create({str(runs)!r}, 'a').path, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        try:
            yield Path(child.stdout.readline().strip()), child
        finally:
            child.kill()
