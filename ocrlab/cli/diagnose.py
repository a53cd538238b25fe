"""`ocrlab diagnose`: why a log, run folder or notebook failed, with the lines that say so."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ocrlab import redaction, safe_read
from ocrlab.cli.parser import Answer
from ocrlab.cli.streams_and_signals import answer_line
from ocrlab.debug.diagnosis import catalogue, classify, load_input, verdict_files
from ocrlab.errors import ConfigError, DataError
from ocrlab.records import SCHEMA, Incident, Verdict, to_json
from ocrlab.run_folder.owner_process import alive
from ocrlab.run_folder.status_file import SENTINELS, running_process

EXAMPLES = """
  ocrlab diagnose train.log
  ocrlab diagnose runs/20260102-030405-receipts
  python train.py 2>&1 | tee train.log; ocrlab diagnose train.log --json
  ocrlab diagnose --jsonl reports.jsonl > verdicts.jsonl
  ocrlab diagnose --explain kernel.illegal_address

exit status: 0 = a verdict, `unknown` included; 1 = the input, or a line of it, cannot be read; 2 = usage error
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument("path", nargs="?", metavar="PATH", help="log, run folder or executed notebook; - reads stdin")
    parser.add_argument(
        "--jsonl", metavar="FILE", help="diagnose many logs: one object with id, log and optional context on each line"
    )
    parser.add_argument(
        "--explain",
        nargs="?",
        const="",
        metavar="ID",
        help="describe a cause and its look-alikes; without ID list all causes",
    )


def run(args: argparse.Namespace) -> Answer:
    """Diagnose, or explain; raises ConfigError where it is not said what, DataError where it cannot be read."""
    if sum(source is not None for source in (args.path, args.jsonl, args.explain)) != 1:
        what = "diagnose takes one of PATH, --jsonl FILE and --explain [ID]"
        raise ConfigError(what, do="See ocrlab diagnose --help")
    if args.explain is not None:
        return _explain(args.explain)
    if args.jsonl is not None:
        return _many(args.jsonl, args.json)
    incident = load_input.read_incident(args.path)
    verdict = classify.classify(incident)
    findings, failed = incident.facts.get("learned"), bool(verdict.causes)
    record, parts = to_json(verdict), [run_state(Path(args.path), failed=failed)]
    if isinstance(findings, list):
        record["learned"] = findings
        lines = ["What the flight record noticed:", "", *(f"- {line}" for line in findings)]
        well = "The flight record saw nothing wrong in how it learned: batches, gradients, steps, modes."
        parts.append("\n".join(lines) if findings else well)
    ended_well = (Path(args.path) / SENTINELS["success"]).is_file()
    if failed or (incident.texts and not ended_well) or not any(parts):
        parts.append(verdict_files.markdown(verdict, incident.facts))
    else:
        parts += verdict_files.extra_paragraphs(incident.facts, verdict)
    text = "\n\n".join(filter(None, parts))
    record |= verdict_files.extra_fields(incident.facts)
    return Answer(redaction.clean(record), redaction.clean(text).rstrip())


def run_state(place: Path, *, failed: bool) -> str:
    """Return what there is to say of a run that ended well, still lives, or is gone without a word; else empty."""
    if (place / SENTINELS["success"]).is_file():
        return "This run has ended well" + ("." if failed else "; nothing in it indicates a failure.")
    if not (place / SENTINELS["running"]).is_file():
        return ""
    process = running_process(place)
    who = f"process {process['pid']}" if process["pid"] else "its process is unknown"
    if process["pid"] and not alive(process):
        why = "killed together with its watcher, or the machine went down"
        return f"This run has not ended, and {who} is gone without a last word: {why}."
    return f"This run has not ended ({who})" + ("." if failed else "; so far nothing says that it fails.")


def _explain(name: str) -> Answer:
    entries = catalogue.load().entries
    if not name:
        rows = [{"id": entry.id, "title": entry.title, "family": entry.family} for entry in entries.values()]
        return Answer({"schema": SCHEMA, "causes": rows}, catalogue.listing())
    text = catalogue.explain(name)
    keys = ("id", "title", "about", "why", "experiment", "fix", "otherwise")
    return Answer({"schema": SCHEMA, **{key: getattr(entries[name], key) for key in keys}, "text": text}, text)


def _many(path: str, whole: bool) -> Answer:
    """Print one verdict a line as it is made, or with `--json` all in one object; 1 where a line is not a report."""
    records: list[dict[str, Any]] = []
    unread = 0
    for number, line in _lines(path):
        if line is None or line.strip():
            record, good = _diagnose_line(line, number)
            unread += not good
            if whole:
                records.append(record)
            else:
                answer_line(record)
    return Answer({"schema": SCHEMA, "verdicts": records}, status=1 if unread else 0)


def _lines(path: str) -> Iterator[tuple[int, bytes | None]]:
    """Yield the numbered lines of a file or of stdin; raises DataError."""
    try:
        with sys.stdin.buffer if path == "-" else safe_read.open_file(path, descriptors=True) as file:
            yield from enumerate(safe_read.lines(file), 1)
    except OSError as error:
        need = "a file with one JSON object a line"
        gone = isinstance(error, FileNotFoundError)
        raise DataError(f"{path} cannot be read", got=error.strerror, need=need, missing=gone) from error


def _diagnose_line(line: bytes | None, number: int) -> tuple[dict[str, Any], bool]:
    """Return the verdict of a line, or what says that it is not a report, and False then."""
    row: Any = None
    good = False
    try:
        if line is None:
            raise ValueError(f"it is longer than {safe_read.LINE:,} bytes; diagnose a log of that size by itself")
        row = json.loads(line)
        if not isinstance(row, dict) or not isinstance(row.get("log"), str):
            raise ValueError("an object with a text `log` is needed")
        context = row.get("context")
        texts = {"log_tail.txt": row["log"]} if row["log"] else {}
        incident = Incident(texts=texts, context=context if isinstance(context, str) else "")
        record, good = to_json(classify.classify(incident)), True
    except (ValueError, RecursionError) as error:
        record = to_json(Verdict(missing=[f"line {number} is not a report: {error}"]))
    except Exception as error:  # nobody foresaw it, and the next line may be a good one
        record = to_json(Verdict(missing=[f"the diagnosis of line {number} failed: {error!r}"]))
    return {**redaction.clean(record), "id": row.get("id") if isinstance(row, dict) else None}, good
