"""How long does each notebook take with its defaults, and how large is the report that one shares?

Each is executed by plain papermill in an empty folder, one after the other, and exported by `ocrlab report html`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from table import figure, markdown, page, parser, publish

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
SECONDS, TRAINING, ALL = 30, 240, 480  # the limits: each, 03_train, all together
LARGEST = 2_000_000  # bytes of a report
Row = tuple[str, str, str, str, str, str]


def main() -> int:
    """Print the table; end with 1 where a limit is not met."""
    options = parser(__doc__)
    options.add_argument("names", nargs="*", help="beginnings of names; default all")
    args = options.parse_args()
    chosen = [path for path in sorted(NOTEBOOKS.glob("*.ipynb")) if path.name.startswith(tuple(args.names) or "")]
    measured = [measure(path) for path in chosen]
    total = sum(float(row[1]) for row in measured)
    for name, seconds, must, *_ in measured:
        figure(f"notebook {name}", float(seconds), "s", limit=f"<= {must}")
    figure("all notebooks", total, "s", limit=f"<= {ALL}")
    rows = [*measured, ("all", f"{total:.1f}", str(ALL), "", "", "" if total <= ALL else "**missed**")]
    header = ("notebook", "seconds", "must", "outcome", "report", "")
    publish("notebooks", page("Notebooks with their defaults", markdown(header, rows)), args)
    return int(any("missed" in row[-1] for row in rows))


def measure(notebook: Path) -> Row:
    """Execute one notebook, export it, and return its row."""
    limit = TRAINING if notebook.name.startswith("03") else SECONDS
    with tempfile.TemporaryDirectory(prefix="ocrlab-bench-") as folder:
        out, report = Path(folder, "out.ipynb"), Path(folder, "out.html")
        begin = time.perf_counter()
        done = run("papermill", str(notebook), str(out), cwd=folder)
        seconds = time.perf_counter() - begin
        exported = run("ocrlab", "report", "html", str(out), "--out", str(report), cwd=folder).returncode
        size = os.path.getsize(report) if report.exists() else 0
        word = outcome(out)
    missed = done.returncode or exported or seconds > limit or size > LARGEST or not size
    cells = (notebook.stem, f"{seconds:.1f}", str(limit), word, f"{size / 1000:.0f} kB")
    print(*cells, file=sys.stderr, flush=True)
    return (*cells, "**missed**" if missed else "")


def run(module: str, *words: str, cwd: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", module, *words], cwd=cwd, capture_output=True, check=False)


def outcome(notebook: Path) -> str:
    """Return the word of the outcome block of an executed notebook."""
    if not notebook.exists():
        return "not executed"
    for cell in json.loads(notebook.read_bytes())["cells"]:
        for output in cell.get("outputs", []):
            result = output.get("data", {}).get("application/vnd.ocrlab.result+json")
            if result:
                return str(result["outcome"])
    return "none"


if __name__ == "__main__":
    sys.exit(main())
