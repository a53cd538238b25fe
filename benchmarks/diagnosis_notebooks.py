"""Does a notebook tell the truth when its kernel dies? Eight causes, each executed by `ocrlab run`.

    python benchmarks/diagnosis_notebooks.py

Counted as right: the word, the signal or the exit code, the number of the cell, the failed cell marked, those before
it completed, those after it pending, a verdict, the same in the result's JSON and in the HTML. The time is from the
death (for a cell that hangs, from its limit) until the last of the three files is written, and must be at most 5 s.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import table

LIMIT, CELL_TIMEOUT = 5.0, 3.0  # seconds
GROUP_BYTES = 700 << 20  # of memory, for the kernel that is killed by the control group
MEMORY = Path("/sys/fs/cgroup/memory")
STAMP = "import os, time\nwith open('died', 'w') as file:\n    file.write(str(time.time()))\n"
NEVER = "import threading\nthreading.Event().wait()"
EAT = "blocks = []\nwhile True:\n    blocks.append(bytearray(os.urandom(1 << 20)) * 32)"
# cause: (code, the word of the outcome, the signal or the exit code)
DEATHS: dict[str, tuple[str, str, str | int | None]] = {
    "SIGSEGV": ("import ctypes; ctypes.string_at(0)", "CRASHED", "SIGSEGV"),
    "SIGKILL": ("os.kill(os.getpid(), 9)", "CRASHED", "SIGKILL"),
    "SIGABRT": ("os.abort()", "CRASHED", "SIGABRT"),
    "SIGILL": ("import signal; os.kill(os.getpid(), signal.SIGILL)", "CRASHED", "SIGILL"),
    "SIGBUS": ("import signal; os.kill(os.getpid(), signal.SIGBUS)", "CRASHED", "SIGBUS"),
    "os._exit(7)": ("os._exit(7)", "FAIL", 7),
    "hang": (NEVER, "STUCK", None),
    "memory": (EAT, "CRASHED", "SIGKILL"),
}


def main() -> int:
    """Run the eight and print the page; returns 1 where one of them lies or is late."""
    args = table.parser(__doc__).parse_args()
    right, slowest, rows = eight()
    met = right == len(DEATHS) and slowest <= LIMIT
    table.figure("notebooks that tell how their kernel died", right / len(DEATHS), "share", limit=">= 1")
    table.figure("the slowest notebook, from the death to its files", slowest, "s", limit=f"<= {LIMIT}")
    summary = (
        f"**{sentence(right, slowest)}** Must: {len(DEATHS)} of {len(DEATHS)} within {LIMIT:g} s: {table.judged(met)}."
    )
    head = ("kernel dies of", "outcome", "signal or exit code", "seconds until all files", "cause named", "right")
    page = table.page("Notebooks whose kernel dies", f"{summary}\n\n{table.markdown(head, rows)}")
    table.publish("diagnosis-notebooks", page, args)
    return 0 if met else 1


def eight() -> tuple[int, float, list[tuple[object, ...]]]:
    """Execute the eight; return how many tell the truth, the seconds of the slowest, and a row for each."""
    rows: list[tuple[object, ...]] = []
    slowest, right = 0.0, 0
    for cause, (code, word, how) in DEATHS.items():
        with tempfile.TemporaryDirectory() as folder:
            wrong, seconds, named = measure(Path(folder), cause, code, word, how)
        slowest, right = max(slowest, seconds), right + (not wrong)
        rows.append((cause, word, "" if how is None else how, f"{seconds:.1f}", named, wrong or "all of it"))
    return right, slowest, rows


def sentence(right: int, slowest: float) -> str:
    """Return the figures in words."""
    return f"{right} of {len(DEATHS)} tell the truth, the slowest {slowest:.1f} s after the death."


def measure(folder: Path, cause: str, code: str, word: str, how: str | int | None) -> tuple[str, float, str]:
    """Execute a notebook that dies; return what it says wrong, the seconds until its files, and the cause it names."""
    sources = ["first = 1", STAMP + code, "third = 3"]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), str(folder / "dies.ipynb"))
    command = [sys.executable, "-m", "ocrlab", "run", "dies.ipynb", "--out", "out", "--json"]
    command += ["--cell-timeout", str(CELL_TIMEOUT)] if cause == "hang" else []
    env = {**os.environ, "PYTHONPATH": str(table.ROOT), "OMP_NUM_THREADS": "1"}
    with group(cause == "memory") as enter:
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, preexec_fn=enter, timeout=120
        )
    files = [next((folder / "out").glob(f"*.{kind}"), None) for kind in ("ipynb", "html", "json")]
    if None in files:
        return f"files are missing: {done.stderr.strip()[-200:]}", float("inf"), ""
    began = float((folder / "died").read_text()) + (CELL_TIMEOUT if cause == "hang" else 0)
    seconds = max(file.stat().st_mtime for file in files if file) - began
    notebook, page, result = (file.read_text(encoding="utf-8") for file in files if file)
    ending = json.loads(result).get("ending") or {}
    named = [row["id"] for row in ((ending.get("verdict") or {}).get("causes") or [])[:1]]
    return "; ".join(lies(json.loads(notebook), page, json.loads(result), word, how)), seconds, ", ".join(named)


def lies(
    notebook: dict[str, Any], page: str, result: dict[str, Any], word: str, how: str | int | None
) -> Iterator[str]:
    """Yield what the three files say that is not so."""
    ending = result.get("ending") or {}
    if result["outcome"] != word:
        yield f"outcome {result['outcome']}"
    if (ending.get("signal") or ending.get("exit_code")) != how:
        yield f"signal {ending.get('signal')}, exit code {ending.get('exit_code')}"
    if ending.get("cell") != 2:
        yield f"cell {ending.get('cell')}"
    ran = [cell for cell in notebook["cells"] if cell["cell_type"] == "code" and cell["source"]]
    marked = [cell["metadata"]["papermill"]["status"] for cell in ran]
    if marked != ["completed", "failed", "pending"]:
        yield f"cells {', '.join(marked)}"
    if notebook["metadata"]["papermill"]["exception"] is not True:
        yield "papermill says no exception"
    if not ending.get("verdict"):
        yield "no verdict"
    if not 0 < page.find(word) < page.find("</header>"):
        yield "the page does not begin with it"


@contextmanager
def group(wanted: bool) -> Iterator[Callable[[], None] | None]:
    """Yield what lets a child enter a control group with little memory, and remove the group; None where not wanted."""
    if not wanted:
        yield None
        return
    place = MEMORY / f"ocrlab-benchmark-{os.getpid()}"
    place.mkdir()
    (place / "memory.limit_in_bytes").write_text(str(GROUP_BYTES))
    try:
        yield lambda: (place / "cgroup.procs").write_text(str(os.getpid())) and None
    finally:
        for _ in range(50):
            for pid in (place / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.1)
            try:
                place.rmdir()
                break
            except OSError:
                continue


if __name__ == "__main__":
    sys.exit(main())
