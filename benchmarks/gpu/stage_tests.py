"""The tests of tests/gpu: several at a time, and those that fill the card after them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from stage import ROOT, Stage, whole_card

TESTS = ROOT / "tests" / "gpu"
ALONE = TESTS / "test_oom.py"  # it needs the whole memory of the card


def run(stage: Stage) -> None:
    """Run them, slow tests included; each that fails has a row. A dry run sees them skip."""
    spread = ["-n", "5"] if importlib.util.find_spec("xdist") and not stage.dry_run else []
    run_tests(stage, TESTS, f"--ignore={ALONE}", *spread)
    with whole_card(stage):
        run_tests(stage, ALONE)


def run_tests(stage: Stage, path: Path, *words: str) -> None:
    """Run some of them by pytest."""
    done = stage.child(["-m", "pytest", path, "-q", "-m", "slow or not slow", "-p", "no:cacheprovider", *words])
    lines = done.out.strip().splitlines() or ["no output"]
    for line in lines:
        if failed := re.match(r"(?:FAILED|ERROR) \S*?(\w+\.py::\S+)(?: - (.*))?", line):
            stage.row(failed[1], (failed[2] or "failed")[:200], "passes", False)
    what = path.relative_to(ROOT).as_posix() + (", the others" if words else "")
    stage.row(f"pytest {what}", lines[-1], "all pass", done.status == 0, dry_run_too=True)
