"""What tools report of a replay: NVIDIA's compute-sanitizer (kernel, line, thread, address) and torch's anomaly mode.

Sources: the manual of Compute Sanitizer (options, and the reports of memcheck, racecheck, initcheck and synccheck), and
torch.autograd.detect_anomaly, which warns with the stack of the forward call.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from ocrlab.debug.replay import variants
from ocrlab.debug.replay.trial import TrialResult, own_lines
from ocrlab.debug.replay.variants import Variant

LOGS = "sanitizer.{}.txt"  # one of each process
MOST = 20  # reports that are kept, of those that differ
LONGEST = 160  # characters of a kernel's name, which of a template may be thousands
LIMIT = 8 << 20  # bytes that are read of a log
PREFIX = re.compile(r"^={5,} ?")
HEAD = re.compile(
    r"^(?:Invalid __\w+__ .*|Out-of-range (?:Shared|Local|Address).*|Uninitialized __?\w+ .*|Barrier error detected.*"
    r"|(?:Error: |Warning: )?(?:Race reported between|Potential \w+ hazard detected).*|Malloc/Free error.*"
    r"|(?:Warp|Lane|Device|Cluster) (?:\w+ )?(?:Illegal|Invalid|Misaligned|Out-of-range|Stack|User Stack|Hardware).*)$",
    re.IGNORECASE,
)
IN = r"(?: in (?P<file>[^\s:]+:\d+))?"
AT = re.compile(rf"^at (?P<kernel>(?!0x)\S.*?)[+:]0x[0-9a-f]+{IN}$")
AT_OLDER = re.compile(r"^at 0x[0-9a-f]+ in (?:(?P<file>[^\s:]+:\d+):)?(?P<kernel>.+)$")  # before 2022
THREAD = re.compile(r"^by thread (?P<thread>\([\d, ]+\)) in block (?P<block>\([\d, ]+\))")
ADDRESS = re.compile(r"^(?:Address|Access (?:at|to)) (?P<address>0x[0-9a-f]+(?: is .+?)?)\.?$")
NEAREST = re.compile(r"^and is (?P<nearest>.+ the nearest allocation at 0x[0-9a-f]+ of size [\d,.]+ bytes)")
IN_FILE = re.compile(r"^in (?P<file>[^\s:]+:\d+)$")
HOST_FRAME = re.compile(r"^Host Frame: ?(?P<function>\S+) in (?P<file>[^\s:]+\.py):(?P<line>\d+)$")
MOST_FILES = 20_000  # that are looked through for a file of the program
OTHER = re.compile(r"^and (?:\w+ )+access at .+$")
FAILED = re.compile(
    r"Device not supported|Internal Sanitizer Error|Unable to (?:attach|load|launch|find|init)|No attachable process",
    re.IGNORECASE,
)
NOTHING = "Target application terminated before first instrumented"

Report = dict[str, Any]
HostFrame = tuple[str, str, int]  # function, file without its folder, line
DETECTED = re.compile(
    r"Error detected in (?P<node>\w+)\. +Traceback of forward call that caused the error:\n(?P<stack>(?: {2}.*\n)+)"
)


def with_log_file(variant: Variant, place: Path) -> Variant:
    """Return a variant whose tool writes what it reports into the folder of the variant; others as they are."""
    if variant.name != variants.MEMCHECK.name:
        return variant
    tool, *options = variant.wrapper
    program = shutil.which(tool) or tool  # the PATH of the replay is that of the run
    return replace(variant, wrapper=(program, *options, "--log-file", str(place.absolute() / LOGS.format("%p"))))


def add_reports(result: TrialResult, place: Path, folders: Sequence[Path] = ()) -> TrialResult:
    """Take into a result what the tool has reported. A report is a fault, also where the program continued after it; a
    tool that did not run says nothing. The program's own files are looked for in `folders`.
    """
    if result.variant.name != variants.MEMCHECK.name:
        return result
    texts = [text for path in sorted(place.glob(LOGS.format("*"))) if (text := _text(path))]
    reports = [report for text in texts for report in parse_reports(text)]
    if reports:
        reports.sort(key=lambda report: report["what"].startswith("Warning"))
        fault = result.fault or {}
        fault = {"kind": "report", "phase": "reported"} if fault.get("kind") in (None, "hang") else fault
        for report in reports[:MOST]:
            report |= {"line": line} if (line := launch_line(report.pop("frames", ()), folders)) else {}
        launched = {"line": reports[0]["line"]} if reports[0].get("line") else {}
        result.fault, result.error_text = {**fault, "report": reports[:MOST], **launched}, ""
        return result
    lines = [PREFIX.sub("", line).strip() for text in texts for line in text.splitlines()]
    failed = next((line for line in lines if FAILED.search(line)), "")
    if not failed and not any("ERROR SUMMARY" in text for text in texts):
        failed = next((line for line in lines if NOTHING in line), "" if result.fault else "it wrote no report")
    if failed:
        result.fault, result.error_text = None, result.error_text or f"{result.variant.name}: {failed}"
    return result


def parse_reports(text: str) -> list[Report]:
    """Return the reports in a log, those of one kind at one line of one kernel once, with how many there were."""
    reports: list[Report] = []
    is_open = in_stack = False
    for line in text.splitlines():
        if not PREFIX.match(line):
            continue  # the program's own
        content = PREFIX.sub("", line).strip()
        if HEAD.match(content):
            reports.append(_begun(content))
            is_open, in_stack = True, False
        elif not content or content.startswith("Program hit"):
            is_open = in_stack = False
        elif content.startswith("Saved host backtrace"):
            is_open, in_stack = False, is_open
        elif in_stack and (frame := HOST_FRAME.match(content)):
            reports[-1].setdefault("frames", []).append((frame["function"], frame["file"], int(frame["line"])))
        elif is_open:
            _note(reports[-1], content)
    merged: dict[tuple[str, ...], Report] = {}
    for report in reports:
        key = tuple(str(report.get(name)) for name in ("what", "kernel", "file", "other"))
        merged.setdefault(key, {**report, "times": 0})["times"] += 1
    return list(merged.values())


def reports_text(reports: list[Report]) -> str:
    """Return the first of some reports in words, and how many more there are."""
    report = reports[0]
    text = str(report["what"])
    text += f" in kernel `{report['kernel']}`" if report.get("kernel") else ""
    text += f" at `{report['file']}`" if report.get("file") else ""
    text += f" {report['other']}" if report.get("other") else ""
    text += f", thread {report['thread']} of block {report['block']}" if report.get("thread") else ""
    text += f", address {report['address']}" if report.get("address") else ""
    text += f", {report['nearest']}" if report.get("nearest") else ""
    text += f", launched at `{report['line']}`" if report.get("line") else ""
    more = int(report["times"]) - 1
    text += f", {more} more like it" if more else ""
    rest = len(reports) - 1
    return text + (f", and {rest} other report{'s' if rest > 1 else ''}" if rest else "")


def launch_line(frames: Sequence[HostFrame], folders: Sequence[Path]) -> str:
    """Return the line of the program's own that has launched a kernel: `file:line function`; empty where none has.

    The tool gives a Python frame its file without its folder, so a file of the program has to have that function there.
    """
    wanted = {file for _, file, _ in frames if file.endswith(".py")}
    files: dict[str, list[Path]] = {name: [] for name in wanted}
    for path in _python_files(folders) if wanted else ():
        if path.name in files and path not in files[path.name]:
            files[path.name].append(path)
    for function, name, number in frames:
        for path in files.get(name, ()):
            if _has_function(path, function, number):
                return f"{path}:{number} {function}"
    return ""


def _python_files(folders: Sequence[Path]) -> Iterator[Path]:
    """Yield Python files of some folders, without what was installed there, and only so many."""
    left = MOST_FILES
    for folder in folders:
        for parent, names, files in os.walk(folder):
            names[:] = [n for n in names if not n.startswith(".") and n not in ("site-packages", "node_modules")]
            for file in files:
                left -= 1
                if left < 0:
                    return
                if file.endswith(".py"):
                    yield Path(parent, file)


def _has_function(path: Path, function: str, number: int) -> bool:
    """Return whether line `number` of a file lies in a function of that name."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, SyntaxError, ValueError):
        return False
    if function.startswith("<"):  # <module>, <lambda>
        return True
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name == function
        and node.lineno <= number <= (node.end_lineno or 0)
        for node in ast.walk(tree)
    )


def _begun(line: str) -> Report:
    """Return a report that begins with a line; that of a race has its place there."""
    what, between, place = line.rstrip(" :").partition(" access at ")
    report: Report = {"what": what + between.removesuffix(" at "), "times": 1}
    if place:
        place, _, other = place.partition(" and ")  # in one line, as an older one has it
        _note(report, f"at {place}")
        report |= {"other": f"and {other}"} if other else {}
    return report


def _note(report: Report, line: str) -> None:
    """Take a line into the report that it belongs to; only the first of each sort."""
    for pattern in (AT, AT_OLDER, THREAD, ADDRESS, NEAREST, IN_FILE):
        if match := pattern.match(line):
            fields = {name: value.strip() for name, value in match.groupdict().items() if value}
            if "kernel" in fields:
                fields["kernel"] = shorten(fields["kernel"], LONGEST, placeholder=" ...")
            report.update({name: value for name, value in fields.items() if name not in report})
            return
    if OTHER.match(line) and "other" not in report:
        report["other"] = line


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(LIMIT).decode("utf-8", "replace")
    except OSError:
        return ""


def add_forward_line(result: TrialResult, place: Path) -> TrialResult:
    """Take the line of the forward into the fault of the variant with anomaly mode; other results stay as they are."""
    if result.variant.name == variants.ANOMALY.name and result.fault is not None:
        text = (place / "output.txt").read_text(encoding="utf-8", errors="replace")
        match = DETECTED.search(text)
        lines = own_lines(match["stack"]) if match else []
        if match and lines:
            result.fault = {**result.fault, "forward": lines[-1], "node": match["node"]}
    return result
