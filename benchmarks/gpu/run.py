"""Try every CUDA claim of ocrlab on a real card, the most valuable ones first. `make gpu` calls it.

    python benchmarks/gpu/run.py --out results      all stages, 480 s at most
    python benchmarks/gpu/run.py --stage faults     one of them; `accuracy` runs only by its name
    python benchmarks/gpu/run.py --dry-run          every stage on a CPU, with stand-ins for what needs a card, and one
                                                    variant of each kind; with --stage all variants

Each stage runs in a process of its own with its own deadline, so that a dead CUDA context, a hang or a typo ends that
stage alone. Its rows are on disk as they are measured: gpu.json and gpu.md are written again after each stage, and
logs.zip holds what the stages printed. Needs torch, ocrlab's own requirements that requirements.txt lists, and nothing
from the network.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import itertools
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stage import ROOT, Row, Stage, end_tree, environment

STAGES = {  # name: seconds on a card, at most; most stages end long before
    "doctor": 90,
    "faults": 150,
    "kernel": 60,
    "memory": 150,
    "tests": 120,
    "recorder": 100,
    "training": 150,
    "blocking": 60,
    "inference": 60,
    "accuracy": 420,
}
TOGETHER = ("faults", "kernel", "memory", "tests")  # none measures speed: they share the card
TOTAL = 480  # seconds of a whole run
DRY_RUN_SECONDS = 150  # of each stage: a busy CPU is not a typo
BY_NAME_ONLY = ("accuracy",)
RUNNING: set[subprocess.Popen[Any]] = set()  # stages


def main() -> int:
    """Run the stages; the exit status is 1 where a row missed or a stage did not end by itself."""
    options = arguments()
    if options.inside:
        brief = options.dry_run and not options.stage
        stage = Stage(options.inside, options.out, options.dry_run, options.seconds, options.data, brief=brief)
        importlib.import_module(f"stage_{options.inside}").run(stage)
        return 0
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end_stages)
    if options.dry_run:  # two stages at a time: with a pool of threads each, every step takes many times longer
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    out = options.out.absolute()
    (out / "rows").mkdir(parents=True, exist_ok=True)
    names = options.stage or [name for name in STAGES if options.dry_run or name not in BY_NAME_ONLY]
    about = machine(options.dry_run)
    rows: list[Row] = []
    ends = time.monotonic() + options.total

    def run(name: str) -> list[Row]:
        seconds = DRY_RUN_SECONDS if options.dry_run else min(STAGES[name], ends - time.monotonic())
        if seconds < 10:
            return [Row(name, f"stage {name}", "not begun: no time left", "", False)]
        return run_stage(name, seconds, out, options)

    for _, group in itertools.groupby(names, lambda name: "" if options.dry_run or name in TOGETHER else name):
        with ThreadPoolExecutor(2 if options.dry_run else len(TOGETHER)) as pool:
            for measured in pool.map(run, group):
                rows += measured
                write(out, about, rows)
    print((out / "gpu.md").read_text(encoding="utf-8"))
    return int(any(row.met is False for row in rows))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", action="append", choices=list(STAGES), help="run only this stage (again for more)")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="folder of the results (gpu-results)")
    parser.add_argument("--dry-run", action="store_true", help="go through every stage on a CPU, with stand-ins")
    parser.add_argument("--total", type=float, default=TOTAL, help=f"seconds of the whole run ({TOTAL})")
    parser.add_argument("--data", type=Path, help="receipts with train/ and val/ for the stage `accuracy`")
    parser.add_argument("--inside", choices=list(STAGES), help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=60.0, help=argparse.SUPPRESS)
    return parser.parse_args()


def run_stage(name: str, seconds: float, out: Path, options: argparse.Namespace) -> list[Row]:
    """Run one stage in a child process until its deadline; return the rows that it has written."""
    rows_file, log_file = out / "rows" / f"{name}.jsonl", out / "rows" / f"{name}.log"
    rows_file.unlink(missing_ok=True)
    shutil.rmtree(out / "rows" / name, ignore_errors=True)
    command = [sys.executable, __file__, "--inside", name, "--out", str(out), "--seconds", str(seconds)]
    command += ["--dry-run"] if options.dry_run else []
    command += ["--stage", name] if options.stage else []
    command += ["--data", str(options.data.absolute())] if options.data else []
    began = time.monotonic()
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment(), start_new_session=True
        )
        RUNNING.add(process)
        try:
            status: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        end_tree(process)
        RUNNING.discard(process)
    took = time.monotonic() - began
    lines = rows_file.read_text(encoding="utf-8").splitlines() if rows_file.exists() else []
    rows = [Row(**json.loads(line)) for line in lines]
    end = {0: "finished", None: f"ended at its deadline of {seconds:.0f} s"}.get(status, f"failed, status {status}")
    rows.append(Row(name, f"stage {name}", f"{end}; {took:.0f} s", f"{seconds:.0f} s", status == 0))
    print(f"{name}: {end}, {took:.0f} s", file=sys.stderr, flush=True)
    if status != 0:
        print("".join(log_file.read_text(errors="replace").splitlines(keepends=True)[-15:]), file=sys.stderr)
    return rows


def end_stages(number: int, _frame: Any) -> None:
    """End the running stages after a signal, so that nothing stays on the card; what finished has been written."""
    for process in list(RUNNING):
        end_tree(process)
    os._exit(128 + number)


def machine(dry_run: bool) -> dict[str, Any]:
    """Return what the figures were measured on."""
    import torch

    ask = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        card = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        card = "no card"
    return {
        "schema": 1,
        "date": datetime.date.today().isoformat(),
        "card": f"{card} (dry run: no figure means anything)" if dry_run else card,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "commit": revision(),
    }


def revision() -> str | None:
    """Return the commit of this tree, None where there is no repository."""
    ask = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(ask, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def write(out: Path, about: dict[str, Any], rows: list[Row]) -> None:
    """Write gpu.json, gpu.md and logs.zip."""
    figures = [about | row.record() for row in rows]
    (out / "gpu.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    verdict = {True: "met", False: "**missed**", None: ""}
    lines = [
        f"# ocrlab on a GPU: {about['card']}",
        "",
        f"{about['date']}, torch {about['torch']}, Python {about['python']}, {about['cores']} cores, commit"
        f" {about['commit']}. `python benchmarks/gpu/run.py {' '.join(sys.argv[1:])}`",
        "",
        "| stage | what | measured | must | |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row.stage, row.what, row.measured, row.must, verdict[row.met]]
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    (out / "gpu.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with zipfile.ZipFile(out / "logs.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted((out / "rows").rglob("*")):
            if path.is_file() and path.stat().st_size < 2**21:
                archive.write(path, path.relative_to(out / "rows"))


if __name__ == "__main__":
    sys.exit(main())
