"""Is memory foretold, does the batch that was fitted fit, are leaks and ends of memory explained?

Each part is a file of its own that can be run alone: memory_fit.py, memory_leaks.py, memory_oom.py. On two cores all of
it takes a quarter of an hour.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from table import figure, markdown, page, parser, publish

ROOT = Path(__file__).parents[1]
NOTEBOOK, SECONDS = ROOT / "notebooks" / "02_memory.ipynb", 30
Row = tuple[str, str, str]


def notebook_row(folder: Path) -> Row:
    """Return how long notebook 02 takes with its defaults, through papermill as anybody would run it."""
    words = [str(NOTEBOOK), str(folder / "out.ipynb"), "--cwd", str(folder)]
    command = [sys.executable, "-m", "papermill", *words]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "MPLBACKEND": "agg"})
    seconds = time.perf_counter() - began
    bad = done.returncode != 0 or seconds > SECONDS
    result = f"{seconds:.0f} s, exit status {done.returncode}{' **missed**' if bad else ''}"
    return "notebook 02 with defaults", result, f"{SECONDS} s on 2 cores"


def part(name: str) -> list[Row]:
    """Return the rows of another file of this folder, or one that says that it is not there."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        return [(name, f"not measured: {error}", "")]
    return list(module.rows())


def fits(folder: Path) -> list[Row]:
    """Return the rows of memory_fit.py."""
    import memory_fit

    return memory_fit.rows(folder)


def main() -> None:
    """Print the table; end with 1 where a limit is not met."""
    arguments = parser(__doc__)
    parts = ("fit", "leaks", "oom", "notebook")
    arguments.add_argument("--only", choices=parts, help="one part alone")
    args = arguments.parse_args()
    table: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="ocrlab-bench-") as place:
        for name in [args.only] if args.only else parts:
            if name == "fit":
                table += fits(Path(place))
            elif name == "notebook":
                table.append(notebook_row(Path(place)))
            else:
                table += part(f"memory_{name}")
    for what, measured, must in table:
        figure(what, measured, "as in the text", limit=must)
    publish("memory", page("The memory lab", markdown(("what", "is", "must"), table)), args)
    sys.exit(any("missed" in row[1] for row in table))


if __name__ == "__main__":
    main()
