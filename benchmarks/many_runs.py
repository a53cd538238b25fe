"""How long does `ocrlab runs` take over 5,000 runs? Interpreter start and both tables included.

python benchmarks/many_runs.py

The folder is made first: run folders as `ocrlab train` leaves them, each with a whole config.yaml (8 settings vary),
environment.json and metrics.csv of 320 rows; a third has failed, with sentinel, traceback and the incident of the
watcher; some are still running, died without a message, or are incomplete. Nothing is cached between two turns.
"""

from __future__ import annotations

import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from table import figure, judged, markdown, page, parser, publish

from ocrlab.config import schema as configs
from ocrlab.run_folder.owner_process import identity

ROWS = 320
LIMIT = 2.5  # seconds
WAYS: dict[str, Sequence[str]] = {
    "all runs": (),
    "all runs, `--json`": ("--json",),
    "`--status failure --cause gpumem`": ("--status", "failure", "--cause", "gpumem"),
    "`batch_size=8 --sort hmean`": ("batch_size=8", "--sort", "hmean"),
}
COLUMNS = (
    "step,loss,bce,dice,l1,lr,step_seconds,images_per_second,fit_seconds,cpu_seconds,hmean@0.5,precision@0.5,"
    "recall@0.5,hmean@0.7,precision@0.7,recall@0.7,hmean@0.8,precision@0.8,recall@0.8,deteval_hmean,deteval_precision,"
    "deteval_recall,cleval_hmean,cleval_precision,cleval_recall,pages,val/hmean,val/deteval,val/cleval"
).split(",")
FAULTS = (
    ("gpumem.capacity", "OutOfMemoryError", "forward", "model.py"),
    ("data.image", "DataError", "read_page", "pages.py"),
    ("num.nonfinite", "FloatingPointError", "training_step", "train.py"),
    ("", "KeyError", "__getitem__", "dataset.py"),
    ("host.oom_kill", "SIGKILL", "", ""),
    ("native.segv", "SIGSEGV", "collate", "dataset.py"),
)


def make(folder: Path, count: int) -> None:
    """Make `count` run folders."""
    rng = random.Random(0)
    texts: dict[tuple[Any, ...], str] = {}
    environment_text = json.dumps(
        {"schema": 1, "packages": {f"package-{i}": f"{i}.{i}.0" for i in range(230)}}, indent=2
    )
    table = metrics(rng)
    for number in range(count):
        what = (rng.choice([1e-3, 2e-3, 5e-4]), rng.choice([2, 4, 8]), rng.choice(["resnet18", "resnet18_slim"]))
        if what not in texts:
            words = [f"optim.lr={what[0]}", f"batch_size={what[1]}", f"encoder={what[2]}"]
            texts[what] = configs.dump(configs.load(overrides=words))
        seed, steps = rng.randrange(100), rng.choice([2000, 7000])
        text = texts[what].replace("seed: 0", f"seed: {seed}").replace("max_steps: 7000", f"max_steps: {steps}")
        text = text.replace("rotate: 7.0", f"rotate: {rng.choice([5.0, 7.0])}").replace(
            "width: 64", f"width: {64 + 64 * (number % 2)}"
        )
        day, second = divmod(number * 170, 86400)
        began = f"2026-10-{1 + day:02}T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
        run = folder / f"{began.replace('-', '').replace('T', '-').replace(':', '')}-receipts"
        for part in ("flight", "checkpoints"):
            (run / part).mkdir(parents=True)
        (run / "config.yaml").write_text(text, encoding="utf-8")
        for name in ("best-resnet18-fpn-step002400-hmean0.7642.ckpt", "last.ckpt"):
            (run / "checkpoints" / name).write_bytes(b"")
        (run / "environment.json").write_text(environment_text, encoding="utf-8")
        (run / "metrics.csv").write_text(table, encoding="utf-8")
        (run / "flight" / "process.json").write_text(json.dumps(identity() | {"pid": 1 << 22}), encoding="utf-8")
        end(run, number, f"{began}.123456+00:00", rng)


def metrics(rng: random.Random) -> str:
    """Return a metrics.csv: a row of training each ten steps, a validation each eighty rows."""
    lines = [",".join(COLUMNS)]
    for row in range(1, ROWS + 1):
        cells = [str(10 * row), *(repr(rng.random()) for _ in range(9)), *[""] * 19]
        if row % 80 == 0:
            cells = [str(10 * row), *[""] * 7, "1.5", "2.5", *(repr(rng.random()) for _ in range(19))]
        lines.append(",".join(cells))
    return "\n".join(lines) + "\n"


def end(run: Path, number: int, began: str, rng: random.Random) -> None:
    """Let a run end: two thirds well, a third with an incident, a few in none of these ways."""
    sentinel: dict[str, Any] = {"schema": 1, "status": "success", "started": began, "ended": began, "error": None}
    if number % 3 == 1:
        (run / ".FAILURE").write_text(json.dumps({**sentinel, **failed(run, number, rng)}), encoding="utf-8")
    elif number % 100 == 3:
        (run / ".RUNNING").write_text(json.dumps(sentinel), encoding="utf-8")  # its process is gone
    elif number % 1000 == 6:
        (run / ".SUCCESS").write_text('{"schema": 1, "sta', encoding="utf-8")
    elif number % 1000 != 9:  # the others have no sentinel at all
        figures = dict.fromkeys(COLUMNS[10:], rng.random()) | {"seconds": 4000 * rng.random(), "steps": 7000.0}
        (run / ".SUCCESS").write_text(json.dumps({**sentinel, "metrics": figures}, indent=2), encoding="utf-8")


def failed(run: Path, number: int, rng: random.Random) -> dict[str, Any]:
    """Write the incident of a failure and return what its sentinel says of it."""
    cause, kind, function, file = FAULTS[number // 3 % len(FAULTS)]
    frames = "".join(
        f'  File "/q/lib/python3.12/site-packages/torch/nn/modules/module.py", line {1700 + i}, in _call_impl\n'
        "    return forward_call(*args, **kwargs)\n"
        for i in range(18)
    )
    own = (
        f'  File "/q/project/{file}", line {rng.randrange(20, 30)}, in {function}\n    x = step(batch)\n'
        if file
        else ""
    )
    text = f"Traceback (most recent call last):\n{frames}{own}{kind}: page {number}\n"
    died = kind.startswith("SIG")
    evidence = [{"file": "log_tail.txt", "line": 7, "text": own.strip().partition("\n")[0] or f"died of {kind}"}]
    causes = [{"id": cause, "confidence": 0.9, "evidence": evidence, "experiment": "x" * 200, "fix": "y" * 80}]
    verdict = {
        "schema": 1,
        "status": "killed" if died else "failed",
        "signal": kind if died else None,
        "symptom": cause,
    }
    (run / "incident").mkdir()
    incident = {"verdict.json": json.dumps({**verdict, "causes": causes if cause else [], "ruled_out": []}, indent=2)}
    incident |= {"verdict.md": "# verdict\n" * 80, "facts.json": json.dumps({"schema": 1, "cpu_flags": ["avx"] * 60})}
    incident["log_tail.txt"] = "step 10 loss 1.2345\n" * 1200 + text
    for name, content in incident.items():
        (run / "incident" / name).write_text(content, encoding="utf-8")
    error = {"type": kind, "message": f"page {number}", "where": None, "traceback": text}
    if died:
        error = {"type": "Killed", "message": f"killed by {kind}", "where": None}
    return {"status": "failure", "metrics": {}, "error": error, "verdict": cause or "unknown"}


def drop(folder: Path) -> None:
    """Drop the contents of all files of a folder from the page cache; their names and sizes may stay known."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def spent(folder: Path, words: Sequence[str]) -> tuple[float, float]:
    """Return wall and CPU seconds of one `ocrlab runs`, from the start of its process to its end."""
    command = [sys.executable, "-m", "ocrlab", "runs", str(folder), *words]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(folder: Path, empty: Path, turns: int) -> tuple[bool, str]:
    """Return whether the limit is met, and the text with the table."""
    cold = []
    for _ in range(3):
        drop(folder)
        cold.append(spent(folder, ()))
    times = {"all runs, files dropped from the page cache": cold}
    for name, words in WAYS.items():
        times[name] = [spent(folder, words) for _ in range(turns)]
    times["an empty folder: what starting costs"] = [spent(empty, ()) for _ in range(turns)]
    rows = []
    for name, taken in times.items():
        walls, used = [wall for wall, _ in taken], [cpu for _, cpu in taken]
        ends = f"{min(walls):.3f} .. {max(walls):.3f}"
        rows.append((name, f"{statistics.median(walls):.3f}", ends, f"{statistics.median(used):.3f}"))
        figure(f"listing runs: {name}", statistics.median(walls), "s", limit=f"<= {LIMIT}")
    files = sum(1 for _ in folder.rglob("*"))
    lines = [f"{len(os.listdir(folder))} runs in {files} files and folders; a process for each figure.", ""]
    lines += [markdown(("`ocrlab runs`", "median, s", "fastest .. slowest", "CPU, s"), rows), ""]
    whole = max(statistics.median(wall for wall, _ in taken) for taken in times.values())
    lines += [f"The slowest way: {whole:.3f} s; limit {LIMIT:g} s: {judged(whole <= LIMIT)}."]
    return whole <= LIMIT, "\n".join(lines)


def main() -> None:
    """Make the runs, list them in several ways, print the table; ends with 1 where the limit is not met."""
    options = parser(__doc__)
    options.add_argument("--count", type=int, default=5000)
    options.add_argument("--turns", type=int, default=7)
    options.add_argument("--keep", type=Path, metavar="DIR", help="make the runs here and leave them; used if there")
    args = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="ocrlab-many-runs-") as scratch:
        folder = args.keep or Path(scratch, "runs")
        if not folder.is_dir():
            make(folder, args.count)
        empty = Path(scratch, "empty")
        empty.mkdir()
        met, body = measure(folder, empty, args.turns)
    publish("runs", page(f"Listing {args.count} runs", body), args)
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
