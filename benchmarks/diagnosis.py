"""How right, how fast and how unbreakable is the half that watches? Every question of it, one after the other.

    python benchmarks/diagnosis.py --save          all of it, about 30 minutes on 2 cores
    python benchmarks/diagnosis.py reports stacks  some of it

Each question is a file of its own, `diagnosis_QUESTION.py`, which can be run alone and has options of its own. Tables
are printed as they are, misses included; a question that ends with an error is a miss.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from table import FIGURES, markdown, page, parser, publish

QUESTIONS = {
    "reports": "is the cause of a pasted log named?",
    "faults": "is the cause of a real failure named?",
    "watch": "how soon is the verdict there, and what does watching cost?",
    "stacks": "how long do the stacks of 17 processes take?",
    "notebooks": "does a notebook tell the truth when its kernel dies?",
    "doctor": "is the doctor's report complete whatever breaks?",
    "kills": "does anything lie when everything is killed?",
}
SECONDS = 3600.0  # for one question


def main() -> None:
    """Ask the questions and end with 1 where one of them misses a limit."""
    arguments = parser(__doc__)
    arguments.add_argument("questions", nargs="*", metavar="QUESTION", help=f"some of {', '.join(QUESTIONS)}")
    args = arguments.parse_intermixed_args()
    unknown = set(args.questions) - set(QUESTIONS)
    if unknown:
        arguments.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(QUESTIONS)}")
    rows, bodies = [], []
    for name in args.questions or QUESTIONS:
        print(f"{name}: {QUESTIONS[name]}", file=sys.stderr, flush=True)
        started = time.monotonic()
        status, body = ask(name)
        seconds = time.monotonic() - started
        rows.append((name, QUESTIONS[name], "met" if status == 0 else "NOT met", f"{seconds:.0f} s"))
        bodies.append(f"## {name}: {QUESTIONS[name]}\n\n{body}")
    summary = markdown(("question", "", "its limits", "took"), rows)
    publish("diagnosis", page("The half that watches", "\n\n".join([summary, *bodies])), args)
    sys.exit(int(any(row[2] != "met" for row in rows)))


def ask(name: str) -> tuple[int, str]:
    """Run one benchmark; returns its exit status and its page without the title, or the end of what it complained."""
    script = Path(__file__).with_name(f"diagnosis_{name}.py")
    with tempfile.TemporaryDirectory(prefix="ocrlab-bench-") as place:
        figures = Path(place, "figures.json")
        words = [sys.executable, str(script), "--json", str(figures)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return 124, f"It did not end within {SECONDS:g} s."
        FIGURES.extend(json.loads(figures.read_text(encoding="utf-8")) if figures.exists() else [])
    if "# " not in done.stdout:
        return done.returncode or 1, f"It ended without a table:\n\n```\n{done.stderr[-2000:]}\n```"
    answer = done.stdout.partition("# ")[2].partition("\n")[2].strip()
    lines = [line for line in answer.splitlines() if not line.startswith("Machine: ")]
    return done.returncode, "\n".join(lines).strip().replace("\n## ", "\n### ")


if __name__ == "__main__":
    main()
