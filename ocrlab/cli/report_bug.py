"""`ocrlab report bug`: a bug report of a run, an incident or an executed notebook that fills itself in."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ocrlab import redaction
from ocrlab.cli import consent, output_paths
from ocrlab.cli.parser import NATURAL, POSITIVE, Answer, reporter
from ocrlab.errors import RunError, escape_name
from ocrlab.records import SCHEMA
from ocrlab.redaction import clean
from ocrlab.reports.bug_report import build
from ocrlab.reports.bug_report.sections import command
from ocrlab.reports.bug_report.sources import Sources, collect

TIMEOUT = 300.0
EXAMPLES = """
  ocrlab report bug runs/20260102-030405-receipts            writes Markdown and HTML to its incident/
  ocrlab report bug runs/20260102-030405-receipts --verify   run it again first: is it the same failure?
  ocrlab report bug reports/mine.ipynb --out bug.md          a failed notebook; writes bug.md and bug.html
  ocrlab report bug train.log                                a log, which contains less
"""
EXAMPLES += consent.HELP


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the words of this command."""
    add = parser.add_argument
    add("path", type="path", metavar="RUN|INCIDENT|NOTEBOOK|LOG", help="what failed; it is not changed")
    add(
        "--verify",
        nargs="?",
        const=1,
        default=0,
        type=NATURAL,
        metavar="N",
        help="run the recorded command again N times under watch, and report whether it fails in the same way (N: 1)",
    )
    consent.add_option(parser)
    add(
        "--timeout",
        type=POSITIVE,
        default=TIMEOUT,
        metavar="S",
        help=f"seconds for each run of --verify (default: {TIMEOUT:g})",
    )
    add(
        "--out",
        type="path",
        metavar="FILE",
        help="new file; .md and .html are written (default: in the incident folder)",
    )


def run(args: argparse.Namespace) -> Answer:
    """Write the report; status 0 where there is one, 1 where nothing failed and none was asked for."""
    out: Path | None = args.out
    stem = "" if out is None else out.stem if out.suffix in (".md", ".html") else out.name
    if out:
        for suffix in (".md", ".html"):
            output_paths.new_file(out.parent / f"{stem}{suffix}", "--out")
    sources = collect(args.path)
    verified = _verify(sources, args) if args.verify else None
    report = build.build(sources, verified)
    record: dict[str, Any] = {"schema": SCHEMA, "front": report.front, "status": report.front["status"]}
    record |= {"redacted": report.redacted, "verified": clean(verified), "markdown": None, "html": None}
    if not sources.failed and not out:
        path = escape_name(sources.path)
        if sources.record and sources.record.status == "running":
            still = f"{path} is still running, and nothing shows that it fails. `ocrlab watch` detects a hang."
            return Answer(record, still, 1)
        do = f"For a wrong result run `ocrlab replay {path}` first, or write a report to complete: --out FILE."
        fact = f"{path} did not fail" if sources.record else f"Nothing in {path} shows a failure"
        return Answer(record, f"{fact}, so there is nothing to report. {do}", 1)
    if out:
        output_paths.make(out.parent, "--out")
        written = build.write(report, out.parent, stem)
    else:
        try:
            written = build.write_beside(report, sources)
        except PermissionError as error:
            what = f"The report cannot be written beside {args.path}"
            raise RunError(what, got=error.strerror, do="Choose another place: --out FILE") from error
    record |= {"markdown": str(written[0]), "html": str(written[1])}
    lines = [f"{report.front['id']}: {report.front['title']}"]
    if verified:
        runs = verified.get("runs")
        same = f"run again: {verified['same']} of {len(runs)} the same" if runs else ""
        lines.append(same or f"not run again: {verified['why']}")
    lines.append(redaction.note(report.redacted))
    return Answer(record, clean("\n".join(lines)) + "\n" + "\n".join(map(escape_name, written)))


def _verify(sources: Sources, args: argparse.Namespace) -> dict[str, Any]:
    from ocrlab.debug.trials.consent import NotTrusted, RecordedProgram, require_consent
    from ocrlab.debug.trials.trial import rerun_command

    words = command(sources)
    if sources.kind != "run" or words is None:
        return {"why": "its command is unknown", "runs": []}

    report = reporter("report bug")
    folder = sources.process.get("folder")
    where = folder if isinstance(folder, str) else None
    files = [path for path in (sources.process_file, sources.path / "config.yaml") if path.exists()]
    program = RecordedProgram(sources.path, files, words, where)
    try:
        consent.with_consent(lambda trust: require_consent(program, trust, lambda _text: None), args.trust)
    except NotTrusted as error:
        report(str(error))
        return {"why": "it was not recorded by you on this machine, or was changed since; see --trust", "runs": []}
    return rerun_command(
        sources.path,
        words,
        where,
        count=args.verify,
        timeout=args.timeout,
        report=lambda text: report(clean(text)),
    )
