"""How soon is the verdict there, and what does watching cost?

Crash: from the last moment of the program to verdict.json on disk; must: 2 s at the 95th percentile. Hang: from the
last sign of life; must: the limit of silence + 3 s. Cost: steps of 20 ms of arithmetic, each with a line of output,
with and without a watcher in turn, and the CPU time of the watcher itself, which a noisy machine does not blur; must:
0.5 %.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import table

CRASHES = {
    "SIGSEGV": "import ctypes; ctypes.string_at(0)",
    "exception": "raise RuntimeError('the reason')",
    "SIGKILL": "os.kill(os.getpid(), 9)",
    "workers left": "[multiprocessing.Process(target=time.sleep, args=(60,)).start() for _ in '12']; os._exit(3)",
}
HANGS = {"lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()", "loop": "while True: pass"}
HEAD = "import multiprocessing, os, sys, threading, time\nprint('begin', flush=True)\n"
HEAD += "open(sys.argv[1], 'w').write(str(time.time()))\n"
SILENCE, STEP = 3.0, 0.02
CRASH_LIMIT, HANG_LIMIT, COST_LIMIT = 2.0, 3.0, 0.005
STEPS = """
import json, sys, time
def work(rounds):
    value = 1
    for _ in range(rounds): value = value * 6364136223846793005 % 18446744073709551557
    return value
began = time.perf_counter(); work(200_000); rounds = int(200_000 * 0.02 / (time.perf_counter() - began))
rounds = int(sys.argv[3]) or rounds
seconds = []
for step in range(int(sys.argv[2])):
    began = time.perf_counter()
    print(f"step {step}: loss {1 / (step + 1):.6f}, value {work(rounds)}", flush=True)
    seconds.append(time.perf_counter() - began)
open(sys.argv[1], "w").write(json.dumps({"rounds": rounds, "seconds": seconds}))
"""
WATCHER = """
import sys, time
from ocrlab.debug.watch.supervisor import Options, watch
from pathlib import Path
before = time.process_time()
watch(sys.argv[2:], Options(run_dir=Path(sys.argv[1])))
print(time.process_time() - before, file=sys.stderr)
"""


def main() -> int:
    """Run it and return the exit status."""
    parser = table.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often each is done (default 5)")
    parser.add_argument("--steps", type=int, default=250, help="steps of a round of the cost (default 250)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ocrlab-bench-") as folder:
        place = Path(folder)
        crashes = [delay(place, code, []) for code in CRASHES.values() for _ in range(options.rounds)]
        hangs = [
            delay(place, code, ["--silence", str(SILENCE), "--on-hang", "kill"]) - SILENCE
            for code in HANGS.values()
            for _ in range(max(1, options.rounds // 2))
        ]
        slower, cpu = cost(place, options.rounds, options.steps)
    rows = [
        row("crash -> verdict.json, s", crashes, CRASH_LIMIT),
        row("hang -> verdict.json, s after the limit", hangs, HANG_LIMIT),
        row("a 20 ms step under watch, slower by %", slower, 100 * COST_LIMIT, middle=True),
        row("CPU time of the watcher, % of a step", cpu, 100 * COST_LIMIT, middle=True),
    ]
    header = ("what", "median", "p95", "worst", "n", "must", "")
    page = table.page("Watching: how soon, and at what cost", table.markdown(header, rows))
    table.publish("diagnosis-watch", page, options)
    return int(any(line[-1] == table.judged(False) for line in rows))


def delay(place: Path, code: str, words: Sequence[str]) -> float:
    """Return the seconds from the last moment of a program to its verdict on disk."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        run, stamp = Path(folder, "run"), Path(folder, "stamp")
        command = [sys.executable, "-m", "ocrlab", "watch", "--run-dir", str(run), *words, "--"]
        command += [sys.executable, "-c", HEAD + code, str(stamp)]
        subprocess.run(command, capture_output=True, timeout=120, check=False)
        return (run / "incident" / "verdict.json").stat().st_mtime - float(stamp.read_text())


def cost(place: Path, rounds: int, steps: int) -> tuple[list[float], list[float]]:
    """Return, of each round, by how many percent a step is slower, and the watcher's CPU time in percent of a step.

    What it costs to start and to end a watcher does not belong to the steps and is taken off.
    """
    slower: list[float] = []
    cpu: list[float] = []
    work = 0
    for number in range(rounds):
        fast = {}  # the fastest tenth: what else this machine does makes steps slower, never faster
        for watched in (False, True) if number % 2 else (True, False):
            timing, _ = stepping(place, watched, steps, work)
            work = work or timing["rounds"]
            fast[watched] = statistics.quantiles(timing["seconds"], n=10)[0]
        used = stepping(place, True, steps, work)[1] - stepping(place, True, 1, work)[1]
        cpu.append(100 * used / (steps - 1) / STEP)
        slower.append(100 * (fast[True] / fast[False] - 1))
    return slower, cpu


def stepping(place: Path, watched: bool, steps: int, work: int) -> tuple[dict[str, Any], float]:
    """Run the steps, with a watcher or without; returns what they tell and the CPU seconds of the watcher."""
    timing = place / "timing.json"
    front = [sys.executable, "-c", WATCHER, tempfile.mkdtemp(dir=place)] if watched else []
    command = [*front, sys.executable, "-c", STEPS, str(timing), str(steps), str(work)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True, timeout=600)
    return json.loads(timing.read_text()), float(done.stderr.split()[-1]) if watched else 0.0


def row(what: str, values: Sequence[float], must: float, *, middle: bool = False) -> tuple[object, ...]:
    """Return a line of the table; the 95th percentile is judged, or with `middle` the median of noisy rounds."""
    ordered = sorted(values)
    late = ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]
    median = statistics.median(ordered)
    table.figure(f"{what}, median", median, "as named", limit=f"<= {must}" if middle else None)
    table.figure(f"{what}, p95", late, "as named", limit=None if middle else f"<= {must}")
    figures = [f"{value:.2f}" for value in (median, late, ordered[-1])]
    return what, *figures, len(ordered), f"{must:g}", table.judged((median if middle else late) <= must)


if __name__ == "__main__":
    sys.exit(main())
