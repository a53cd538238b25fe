"""Does a diagnosis name the cause that was established? Public failure reports and captured logs of real faults.

python benchmarks/diagnosis_reports.py [REPORTS.jsonl ...]

A report is right when its cause comes first, accepted when the first is one of the causes that its thread accepts too.
A report that cannot be decided without running again is right when one of them is among the first three, none is
called sure (above 0.7), and an experiment is named. The worst is a wrong cause called sure (0.8 or more).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from table import figure, markdown, page, parser, publish

from ocrlab.debug.diagnosis import classify, load_input
from ocrlab.records import Incident, Verdict

SHARED = Path(__file__).parents[2] / "shared" / "diagnosis"
SURE, UNSURE = 0.8, 0.7
LIMITS = {"first": 0.90, "accepted": 0.97, "ambiguous": 0.90, "sure": 0.70}
# What each captured fault may be called; a name stands for every log that begins with it, the longest match counts.
CAPTURED = {
    "bce_range": "num.nonfinite data.index_range",
    "big_alloc": "host.alloc_fail gpumem.absurd_size",
    "cgroup_oom": "host.oom_kill",
    "cpp_exception_thread": "kernel.illegal_address",
    "cpptrace_shape": "user.shape",
    "cpu_rlimit": "ext.signal",
    "cstack": "native.segv",
    "cuda_": "driver.none",
    "disk_sigxfsz": "io.disk_full",
    "dl_abort": "loader.worker_crash",
    "dl_badexc": "loader.hang_unpicklable",
    "dl_cudaworker": "driver.none loader.cuda_in_fork",
    "dl_exit": "loader.worker_exit",
    "dl_fds": "host.fd_limit",
    "dl_fh_ill": "build.cpu_isa",
    "dl_fh_segv": "loader.worker_crash",
    "dl_fpe": "loader.worker_crash",
    "dl_hang": "loader.hang_sample",
    "dl_ill": "build.cpu_isa loader.worker_crash",
    "dl_keyerror": "data.sample",
    "dl_kill9": "loader.worker_killed host.oom_kill",
    "dl_manyw": "",
    "dl_none": "data.sample",
    "dl_noresize": "",
    "dl_nw0_raise": "data.sample",
    "dl_pin_nocuda": "",
    "dl_ragged": "data.sample",
    "dl_raise": "data.sample",
    "dl_rlimit": "host.thread_limit host.alloc_fail",
    "dl_segv": "loader.worker_crash",
    "dl_spin": "loader.hang_sample",
    "dl_sysexit": "loader.worker_exit",
    "dl_term": "loader.worker_killed",
    "dl_unpicklable_spawn": "loader.pickling",
    "dl_workerinit_fh": "loader.worker_crash",
    "double_backward": "user.autograd",
    "dtype": "user.dtype",
    "emfile": "host.fd_limit",
    "enospc": "io.disk_full",
    "fh_later": "hang.deadlock",
    "fh_sigabrt": "native.abort",
    "fh_sigbus_file": "host.shm data.corrupt",
    "fh_sigill": "build.cpu_isa",
    "fh_sigsegv": "native.segv",
    "fh_usr1_gil": "hang.deadlock host.oom_kill ext.signal",
    "fork_omp": "loader.fork_deadlock",
    "futex_native": "hang.deadlock",
    "glibc_free": "native.abort",
    "heap_smash": "native.segv",
    "import_hang": "hang.import",
    "import_missing_so": "build.cuda_libraries",
    "index_oob": "data.index_range",
    "inplace": "user.autograd",
    "isa_avx10": "build.cpu_isa",
    "lock_deadlock": "hang.deadlock",
    "loss_nan_train": "num.nonfinite",
    "main_sigsegv_threads": "native.segv",
    "nan_": "num.nonfinite",
    "native_spin": "hang.deadlock",
    "nb": "notebook.kernel_died native.segv",
    "nproc": "host.thread_limit",
    "oserror_disk": "io.disk_full",
    "py_handler_gil": "host.oom_kill ext.signal",
    "py_spin": "hang.deadlock",
    "rlimit_": "host.alloc_fail",
    "shape": "user.shape",
    "shm_exhaust": "host.shm",
    "sigabrt": "native.abort",
    "sigbus_file": "host.shm data.corrupt",
    "sigfpe": "native.segv native.abort",
    "sigill": "build.cpu_isa",
    "sigpipe": "ext.signal",
    "sigsegv": "native.segv",
    "sigstop": "hang.stopped",
    "state_dict": "ckpt.mismatch",
    "target_oob": "data.index_range",
    "torch_cpp_trace": "user.shape",
    "undefined_symbol": "build.abi",
    "unpickle_": "ckpt.corrupt",
}


def main() -> None:
    """Score, print the table and every miss, and end with 1 where a limit is not met."""
    options = parser(__doc__)
    options.add_argument("reports", nargs="*", type=Path, help="JSON-lines files (default: the shared development set)")
    options.add_argument("--misses", action="store_true", help="name each report that was missed")
    args = options.parse_args()
    parts, met = [], True
    for file in args.reports or [SHARED / "reports_dev.jsonl"]:
        reports = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        start = time.perf_counter()
        verdicts = [diagnose(report) for report in reports]
        seconds = time.perf_counter() - start
        rows, fine = score(reports, verdicts)
        met &= fine
        parts.append(
            f"{file.name}: {len(reports)} reports in {seconds:.1f} s.\n\n{markdown(('what', 'is', 'must'), rows)}"
        )
        parts += [f"Missed:\n\n{misses(reports, verdicts)}"] if args.misses else []
    parts.append(captured(SHARED / "captured", show_misses=args.misses))
    publish("diagnosis-reports", page("Diagnosis of public failure reports", "\n\n".join(parts)), args)
    sys.exit(0 if met else 1)


def diagnose(report: dict[str, Any]) -> Verdict:
    """Return the verdict of one report."""
    return classify.classify(Incident(texts={"log_tail.txt": report["log"]}, context=report.get("context") or ""))


def accepted(report: dict[str, Any]) -> set[str]:
    """Return the causes that a report's thread accepts."""
    return {report["cause"], *(report.get("also_acceptable") or ())}


def score(reports: list[dict[str, Any]], verdicts: list[Verdict]) -> tuple[list[tuple[str, str, str]], bool]:
    """Return the rows of the table, and whether every limit is met."""
    pairs = list(zip(reports, verdicts, strict=True))
    decided = [pair for pair in pairs if not pair[0].get("ambiguous_without_rerun")]
    open_ones = [pair for pair in pairs if pair[0].get("ambiguous_without_rerun")]
    first = sum(top(verdict) == report["cause"] for report, verdict in decided)
    fine = sum(top(verdict) in accepted(report) for report, verdict in decided)
    sure = sum(top(v) in accepted(r) and v.causes[0].confidence >= SURE for r, v in decided if v.causes)
    named = sum(among(report, verdict) for report, verdict in open_ones)
    wrong = sum(top(v) not in accepted(r) and v.causes[0].confidence >= SURE for r, v in pairs if v.causes)
    figure("decided by their log: cause first", first / max(len(decided), 1), "share", limit=f">= {LIMITS['first']}")
    figure("decided by their log: accepted", fine / max(len(decided), 1), "share", limit=f">= {LIMITS['accepted']}")
    figure(
        "need a run: among the first three", named / max(len(open_ones), 1), "share", limit=f">= {LIMITS['ambiguous']}"
    )
    figure("decided, accepted and sure", sure / max(len(decided), 1), "share", limit=f">= {LIMITS['sure']}")
    figure("wrong and sure", wrong, "reports", limit="<= 0")
    rows = [
        share("decided by their log: cause first", first, len(decided), LIMITS["first"]),
        share("decided by their log: accepted", fine, len(decided), LIMITS["accepted"]),
        share("need a run: among the first three, at most 0.7", named, len(open_ones), LIMITS["ambiguous"]),
        share("decided, accepted and sure", sure, len(decided), LIMITS["sure"]),
        ("wrong and sure", str(wrong), "none"),
        share("all: accepted first", sum(top(v) in accepted(r) for r, v in pairs), len(pairs), None),
        share("misleading: accepted first", *count((r, v) for r, v in pairs if r.get("misleading")), None),
    ]
    return rows, wrong == 0 and all("(missed)" not in row[1] for row in rows)


def count(pairs: Iterable[tuple[dict[str, Any], Verdict]]) -> tuple[int, int]:
    """Return how many are accepted, and how many there are."""
    right = [top(verdict) in accepted(report) for report, verdict in pairs]
    return sum(right), len(right)


def share(what: str, part: int, whole: int, limit: float | None) -> tuple[str, str, str]:
    """Return a row of the table."""
    value = part / whole if whole else 1.0
    missed = " (missed)" if limit is not None and value < limit else ""
    return what, f"{value:.3f} ({part}/{whole}){missed}", "" if limit is None else f"{limit:.2f}"


def top(verdict: Verdict) -> str | None:
    """Return the first cause."""
    return verdict.causes[0].id if verdict.causes else None


def among(report: dict[str, Any], verdict: Verdict) -> bool:
    """Return whether a report that needs a run is answered as it should be."""
    three = verdict.causes[:3]
    named = [cause for cause in three if cause.id in accepted(report)]
    return bool(named) and all(cause.confidence <= UNSURE for cause in three) and all(c.experiment for c in three)


def misses(reports: list[dict[str, Any]], verdicts: list[Verdict]) -> str:
    """Return one line for each report whose verdict is not as it should be."""
    lines = []
    for report, verdict in zip(reports, verdicts, strict=True):
        answer = ", ".join(f"{cause.id} {cause.confidence}" for cause in verdict.causes[:3]) or "unknown"
        if report.get("ambiguous_without_rerun"):
            fine = among(report, verdict)
        else:
            fine = top(verdict) == report["cause"]
        kind = "open" if report.get("ambiguous_without_rerun") else "decided"
        if not fine:
            other = " ".join(report.get("also_acceptable") or ()) or "-"
            lines.append(f"- {report['id']} ({kind}): is {report['cause']} ({other}); said {answer}")
    return "\n".join(lines) or "- none"


def captured(folder: Path, *, show_misses: bool) -> str:
    """Return the score of the captured logs, with every miss where `show_misses`."""
    lines, right, total = [], 0, 0
    for log in sorted(folder.glob("*.log")):
        verdict = classify.classify(load_input.read_incident(str(log)))
        name = max((name for name in CAPTURED if log.stem.startswith(name)), key=len)
        wanted = CAPTURED[name].split()
        fine = top(verdict) in wanted or (not wanted and (not verdict.causes or verdict.causes[0].confidence < 0.5))
        right, total = right + fine, total + 1
        answer = ", ".join(f"{cause.id} {cause.confidence}" for cause in verdict.causes[:3]) or "unknown"
        lines += [] if fine else [f"- {log.stem}: is {' or '.join(wanted) or 'no failure'}; said {answer}"]
    figure("captured logs of real faults named right", right / max(total, 1), "share")
    text = f"Captured logs of real faults: {right} of {total} named right."
    return text + ("\n\n" + "\n".join(lines) if show_misses and lines else "")


if __name__ == "__main__":
    main()
