"""Programs with one silent fault, and healthy ones: does `check_step`, or the recorder at the end, name the fault?

Each program runs as a child in an empty folder; what counts are the lines that begin with [fail], [warn] or "ocrlab: ",
of the program and of `ocrlab diagnose` on its run folder. A fault is named where such a line holds one of the words in
the first line of its program, hinted where there is another line. Every such line on a healthy program is a flag.

python benchmarks/silent.py                    the development set, ../shared/silent
python benchmarks/silent.py --unread FOLDER    a set that no rule was changed for, in a table of its own
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import table

SHARED = table.ROOT.parent / "shared" / "silent" / "programs"
TRUTH = re.compile(r"# expect: (?P<truth>.*?) \|(?: fixable-words?: (?P<words>.*?) \|)? source: (?P<source>.*)")
LIMIT = 300  # seconds of a program
FIRST = 3  # named in the development set before the laws


@dataclass
class Outcome:
    """What was printed about one program."""

    name: str
    truth: str
    words: list[str]
    seconds: float = 0.0
    status: int = 0
    lines: list[str] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether there is nothing to be named."""
        return self.truth == "healthy"

    @property
    def naming(self) -> str:
        """The first line that holds a word of the truth."""
        return next((line for line in self.lines if any(word in line.lower() for word in self.words)), "")

    @property
    def verdict(self) -> str:
        """What the table says."""
        if self.status:
            return f"exit status {self.status}"
        if self.healthy:
            return "flagged" if self.lines else "silent, as it should be"
        return "named" if self.naming else "hinted" if self.lines else "silent"


def run(program: Path) -> Outcome:
    """Run a program in an empty folder, then `ocrlab diagnose` on each run folder that it leaves."""
    first = TRUTH.match(program.read_text(encoding="utf-8").partition("\n")[0])
    if first is None:
        raise SystemExit(f"{program}: its first line states no truth")
    outcome = Outcome(program.stem, first["truth"], [w for w in (first["words"] or "").lower().split("/") if w])
    environment = {**os.environ, "PYTHONPATH": str(table.ROOT), "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        child = subprocess.run(
            [sys.executable, str(program)], cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT
        )
        outcome.seconds, outcome.status = time.monotonic() - began, child.returncode
        text = child.stdout + child.stderr
        for flight in sorted(Path(folder).glob("*/flight")):
            command = [sys.executable, "-m", "ocrlab", "diagnose", str(flight.parent)]
            text += subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True).stdout
    lines = [line.strip() for line in text.splitlines()]
    outcome.lines = list(dict.fromkeys(s for s in lines if s.startswith(("[fail]", "[warn]", "ocrlab: ", "- the "))))
    return outcome


def section(title: str, folder: Path, first: int | None) -> str:
    """Run the programs of a folder, and return their table and score."""
    outcomes = [run(program) for program in sorted(folder.glob("*.py"))]
    rows = [[o.name, o.verdict, f"{o.seconds:.0f}", (o.naming or " / ".join(o.lines))[:160]] for o in outcomes]
    faulty, healthy = ([o for o in outcomes if o.healthy is kind] for kind in (False, True))
    named, hinted = (sum(o.verdict == verdict for o in faulty) for verdict in ("named", "hinted"))
    flagged = sum(bool(o.lines) for o in healthy)
    rest = sum(bool(line not in o.naming) for o in faulty if o.naming for line in o.lines)
    source = "from public cases" if first else f"of {folder.name}"
    least = 14 if first else round(0.6 * len(faulty))
    table.figure(f"{len(faulty)} programs {source}, named", named, "programs", limit=f">= {least}")
    table.figure(f"{len(faulty)} programs {source}, hinted only", hinted, "programs")
    table.figure(f"{len(healthy)} healthy programs flagged", flagged, "programs", limit="<= 0")
    score = f"{named} of {len(faulty)} named, {hinted} hinted, {flagged} of {len(healthy)} healthy ones flagged."
    score += f" {rest} further lines beside the naming ones." + (f" First score: {first} named." if first else "")
    return f"## {title}\n\n{score}\n\n{table.markdown(['program', 'verdict', 's', 'line'], rows)}\n"


def main() -> None:
    """Print the table, and write it where that is asked for."""
    command = table.parser(__doc__)
    command.add_argument("--unread", type=Path, action="append", default=[], metavar="FOLDER")
    args = command.parse_args()
    parts = [section("Development set", SHARED, FIRST)] if SHARED.is_dir() else ["../shared/silent is absent.\n"]
    parts += [section(f"Unread set {folder.name}", folder, None) for folder in args.unread]
    table.publish("silent", table.page("Silent faults", "\n".join(parts)), args)


if __name__ == "__main__":
    main()
