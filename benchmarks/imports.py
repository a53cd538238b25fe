"""What does `import ocrlab` cost? Seconds in a fresh process beyond a bare interpreter, and what it drags in.

python benchmarks/imports.py
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

from table import figure, judged, markdown, page, parser, publish

LIMIT = 0.05  # seconds
HEAVY = ("torch", "lightning", "pandas", "matplotlib", "wandb")  # must not be there
PROGRAM = f"""
import sys, time
start = time.perf_counter()
import ocrlab
seconds = time.perf_counter() - start
import json
print(json.dumps({{"seconds": seconds, "heavy": [name for name in {HEAVY!r} if name in sys.modules]}}))
"""


def main() -> None:
    """Measure, print the table, and end with 1 where a limit is not met."""
    arguments = parser(__doc__)
    arguments.add_argument("--rounds", type=int, default=11, help="fresh processes of each kind (default 11)")
    args = arguments.parse_args()
    whole, bare, inside, heavy = [], [], [], set()
    run("import ocrlab")  # writes the byte code
    for _ in range(args.rounds):
        bare.append(run("pass")[0])
        whole.append(run("import ocrlab")[0])
        facts = json.loads(run(PROGRAM)[1])
        inside.append(facts["seconds"])
        heavy |= set(facts["heavy"])
    met, body = report(whole, bare, inside, sorted(heavy))
    publish("imports", page("Importing ocrlab", body), args)
    sys.exit(0 if met else 1)


def run(program: str) -> tuple[float, str]:
    """Run a program text in a fresh interpreter; returns its wall seconds and its output."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return time.perf_counter() - start, done.stdout


def report(whole: list[float], bare: list[float], inside: list[float], heavy: list[str]) -> tuple[bool, str]:
    """Return whether the limits are met, and the text with the table; all times in seconds, one a round."""
    beyond = statistics.median(whole) - statistics.median(bare)
    rows = [
        ("interpreter with `import ocrlab`", *spread(whole)),
        ("bare interpreter", *spread(bare)),
        ("the import statement itself", *spread(inside)),
    ]
    quick = beyond <= LIMIT
    figure("import ocrlab, beyond a bare interpreter", beyond, "s", limit=f"<= {LIMIT}")
    figure(f"modules of {', '.join(HEAVY)} that it imports", len(heavy), "modules", limit="<= 0")
    lines = [
        markdown(("what", "median", "fastest .. slowest"), rows),
        "",
        f"`import ocrlab` beyond a bare interpreter: {beyond:.3f} s; limit {LIMIT} s: {judged(quick)}.",
        f"Of {', '.join(HEAVY)} it imports: {', '.join(heavy) or 'none'}; limit none: {judged(not heavy)}.",
    ]
    return quick and not heavy, "\n".join(lines)


def spread(seconds: list[float]) -> tuple[str, str]:
    """Return median and range as text."""
    return f"{statistics.median(seconds):.3f} s", f"{min(seconds):.3f} .. {max(seconds):.3f} s"


if __name__ == "__main__":
    main()
