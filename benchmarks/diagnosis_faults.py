"""Does `ocrlab watch` name why a program failed? Every fault of the lab, on each start method that it knows.

    python benchmarks/diagnosis_faults.py                                 all that this machine can run, about 8 minutes
    python benchmarks/diagnosis_faults.py --family loader --jobs 1        one family, one after the other
    python benchmarks/diagnosis_faults.py --name segv --name lock_order   some

Right means that the first cause of the verdict is one that the fault's author accepts, who has not seen the rules.
A healthy program is right if it ends by itself without a verdict; `suspected` counts as flagged.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from table import RESULTS, figure, markdown, page, parser, publish, today

from ocrlab.fault_lab import FAULTS
from ocrlab.fault_lab.fault import Fault
from ocrlab.fault_lab.setup import clear_groups

Result = dict[str, Any]
TOO_LONG = 120.0  # seconds until the watcher itself is ended


def main() -> None:
    """Run the faults and print the tables."""
    args = arguments()
    chosen = [fault for fault in FAULTS.values() if wanted(fault, args)]
    lacking = {fault.name: lack for fault in chosen if (lack := fault.lacks())}
    runs = [(f, method) for f in chosen if f.name not in lacking for method in (f.start_methods or (None,))]
    began = time.monotonic()
    with ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(lambda run: report_progress(watched(run[0], run[1], args.silence)), runs))
    clear_groups()
    took = f"{len(results)} runs in {time.monotonic() - began:.0f} s, {args.jobs} at a time."
    body = f"{report(results, lacking)}\n\n{took}"
    publish("faults", page("The fault lab: named right", body), args)
    if args.save:
        lines = "".join(json.dumps(result, sort_keys=True) + "\n" for result in results)
        (RESULTS / f"{today()}-faults.jsonl").write_text(lines, encoding="utf-8")


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    options = parser(__doc__)
    options.add_argument("--family", action="append", default=[], help="only faults of this family (again for more)")
    options.add_argument("--name", action="append", default=[], help="only this fault (again for more)")
    options.add_argument(
        "--silence", type=float, default=6.0, help="seconds without progress that are a hang (default 6)"
    )
    options.add_argument("--jobs", type=int, default=2, help="how many at a time (default 2)")
    return options.parse_args()


def wanted(fault: Fault, args: argparse.Namespace) -> bool:
    """Return whether the command line asks for a fault; without names and families it asks for all."""
    return not (args.name or args.family) or fault.name in args.name or fault.family in args.family


def watched(fault: Fault, method: str | None, silence: float) -> Result:
    """Run one fault under `ocrlab watch` and return what was said about it."""
    place = Path(tempfile.mkdtemp(prefix="faults-"))
    place.chmod(0o755)  # some faults go on as another user
    command = [sys.executable, "-m", "ocrlab", "watch", "--run-dir", str(place / "run"), "--silence", str(silence)]
    command += ["--on-hang", "kill", "--", sys.executable, "-m", "ocrlab.fault_lab", fault.name]
    command += ["--start-method", method] if method else []
    began = time.monotonic()
    try:
        status = finished(command, {**os.environ, "TMPDIR": str(place)})
        seconds = time.monotonic() - began
        verdict = read(place / "run" / "incident" / "verdict.json")
    finally:
        orphans = end_all(f"TMPDIR={place}")
        shutil.rmtree(place, ignore_errors=True)
    causes = verdict.get("causes") or []
    first = causes[0]["id"] if causes else None
    healthy = fault.ends == "healthy"
    return {
        "name": fault.name,
        "family": fault.family,
        "method": method,
        "ends": fault.ends,
        "accepted": list(fault.causes),
        "said": [cause["id"] for cause in causes[:3]],
        "confidence": causes[0]["confidence"] if causes else None,
        "status": verdict.get("status"),
        "signal": verdict.get("signal"),
        "exit_status": status,
        "right": not verdict and status == 0 if healthy else first in fault.causes,
        "seconds": round(seconds, 1),
        "orphans": orphans,
    }


def finished(command: list[str], environment: dict[str, str]) -> int | None:
    """Run a command, whose input stays open, to its end; return its exit status, None if it had to be ended."""
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, start_new_session=True, **streams) as process:  # type: ignore[call-overload]
        try:
            return int(process.wait(TOO_LONG))
        except subprocess.TimeoutExpired:
            process.kill()
            return None


def read(path: Path) -> Result:
    """Return a verdict, empty where there is none."""
    try:
        verdict: Result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return verdict


def end_all(marker: str) -> int:
    """Kill every process that was started with `marker` in its environment and return how many there were."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marker.encode() in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
                count += 1
    return count


def report_progress(result: Result) -> Result:
    """Say on stderr how one run went, and return it."""
    mark = "right" if result["right"] else "WRONG"
    where = f"{result['name']} {result['method'] or ''}".strip()
    verdict = f"{result['status']} {' '.join(result['said'])}"
    print(f"{mark} {where:<28} {result['seconds']:5.1f} s  {verdict}", file=sys.stderr, flush=True)
    return result


def report(results: list[Result], lacking: dict[str, str]) -> str:
    """Return the tables: all, by family, by start method, what was wrong, what could not run."""
    faults = [result for result in results if result["ends"] != "healthy"]
    healthy = [result for result in results if result["ends"] == "healthy"]
    rows = [("**all faults**", *share(faults))]
    rows += [(family, *share(of(faults, "family", family))) for family in unique(faults, "family")]
    methods = [(name or "does not matter", *share(of(faults, "method", name))) for name in unique(faults, "method")]
    wrong = [row(result) for result in results if not result["right"]]
    flagged = sum(not result["right"] for result in healthy)
    figure("faults named right", share(faults)[0] / max(len(faults), 1), "share", limit=">= 0.97")
    figure("healthy slow programs flagged", flagged, "programs", limit="<= 0")
    figure("processes left behind", sum(result["orphans"] for result in results), "processes", limit="<= 0")
    parts = [
        markdown(("family", "named right", "of", "share"), rows),
        markdown(("start method", "named right", "of", "share"), methods),
        f"Healthy slow programs flagged: {flagged} of {len(healthy)}. "
        f"Processes left behind: {sum(result['orphans'] for result in results)}.",
        markdown(("wrong", "start method", "accepted", "said", "status"), wrong) if wrong else "None wrong.",
    ]
    if lacking:
        reasons = sorted(set(lacking.values()))
        parts.append("\n".join(f"Not run, for lack of {reason}: {named(lacking, reason)}." for reason in reasons))
    return "\n\n".join(parts)


def row(result: Result) -> tuple[str, ...]:
    """Return one line of the table of what was wrong."""
    accepted, answer = " ".join(result["accepted"]) or "healthy", " ".join(result["said"]) or "unknown"
    return result["name"], result["method"] or "", accepted, answer, str(result["status"])


def named(lacking: dict[str, str], reason: str) -> str:
    """Return the names of the faults that lack the same."""
    return ", ".join(name for name, lack in lacking.items() if lack == reason)


def share(results: list[Result]) -> tuple[int, int, str]:
    """Return how many are right, of how many, and the share."""
    right = sum(result["right"] for result in results)
    return right, len(results), f"{right / len(results):.3f}" if results else "-"


def of(results: Iterable[Result], key: str, value: object) -> list[Result]:
    """Return the results whose `key` is `value`."""
    return [result for result in results if result[key] == value]


def unique(results: Iterable[Result], key: str) -> list[Any]:
    """Return the values of `key`, each once, in order."""
    return list(dict.fromkeys(result[key] for result in results))


if __name__ == "__main__":
    main()
