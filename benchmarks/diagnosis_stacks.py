"""How long do the stacks of a hung training with all its workers take: 17 processes, from the call to the text?

A DataLoader with 16 workers stands still because one of them sleeps in a sample; the stacks of all are taken again and
again. Must: 1 s at the 95th percentile. Ends with 1 where that is not reached or a stack is missing.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time

import table

from ocrlab.debug.diagnosis.hangs import hang_cause
from ocrlab.hardware.processes import process_tree, stack_dumps

WORKERS = 16
LIMIT = 1.0  # seconds
PATIENCE = 120.0  # seconds for the program to stand still
PROGRAM = f"""
import time, torch
class Sleeps(torch.utils.data.Dataset):
    def __len__(self): return 1000
    def __getitem__(self, index):
        if index == 77: time.sleep(3600)
        return torch.zeros(1)
if __name__ == "__main__":
    for _ in torch.utils.data.DataLoader(Sleeps(), batch_size=2, num_workers={WORKERS}): pass
"""


def main() -> int:
    """Run it and return the exit status."""
    parser = table.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="how often the stacks are taken (default 40)")
    options = parser.parse_args()
    child = subprocess.Popen([sys.executable, "-W", "ignore", "-c", PROGRAM], start_new_session=True)
    try:
        _stands_still(child.pid)
        rows, good = _measure(child.pid, options.rounds)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    for what, median, late, _, must in rows:
        table.figure(f"{what}, median", float(median), "s")
        table.figure(f"{what}, p95", float(late), "s", limit=f"<= {must}" if must else None)
    header = ("what", "median s", "p95 s", "worst s", "must")
    body = table.markdown(header, rows)
    table.publish("diagnosis-stacks", table.page(f"Stacks of {1 + WORKERS} processes", body), options)
    return 0 if good else 1


def _stands_still(pid: int) -> None:
    """Wait until the training waits for the one worker that sleeps."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        findings = hang_cause.find_hangs(stack_dumps.take(process_tree.descendants(pid), 10.0), {})
        if findings and findings[0].id == "loader.hang_sample" and "sample 77" in findings[0].why:
            return
        time.sleep(0.5)
    raise SystemExit("the program did not come to the place where it hangs")


def _measure(pid: int, rounds: int) -> tuple[list[tuple[str, ...]], bool]:
    whole, naming, complete = [], [], True
    for _ in range(rounds):
        began = time.monotonic()
        taken = stack_dumps.take(process_tree.descendants(pid), LIMIT)
        stack_dumps.text(taken)
        whole.append(time.monotonic() - began)
        hang_cause.find_hangs(taken, {})
        naming.append(time.monotonic() - began)
        complete &= len(taken) == 1 + WORKERS and all(stack.how == "py-spy" for stack in taken)
    rows = [_row("stacks of all, as text", whole, f"{LIMIT:.0f}"), _row("and the hang is named", naming, "")]
    return rows, complete and float(rows[0][2]) <= LIMIT


def _row(what: str, seconds: list[float], must: str) -> tuple[str, ...]:
    ordered = sorted(seconds)
    late = ordered[max(0, round(0.95 * len(ordered)) - 1)]
    return what, f"{statistics.median(ordered):.3f}", f"{late:.3f}", f"{ordered[-1]:.3f}", must


if __name__ == "__main__":
    sys.exit(main())
