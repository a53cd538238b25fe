"""`ocrlab runs`: every run of a folder in one table, what made them differ, and which failures are the same one."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
from typing import Any

from ocrlab.cli import runs_table
from ocrlab.cli.parser import NATURAL, Answer, Parser
from ocrlab.errors import ConfigError
from ocrlab.records import SCHEMA
from ocrlab.reports.run_history import query, run_list
from ocrlab.reports.run_history.run_list import Run

DEFAULT = "runs"
SCREEN = 20  # runs on a terminal; a pipe and --json get all
EXAMPLES = """
  ocrlab runs                                             the newest runs in runs/, then failures by fingerprint
  ocrlab runs elsewhere 'hmean>0.9' encoder=resnet18      filter by a setting or a metric
  ocrlab runs --status failure --since 3d                 what failed in the last three days
  ocrlab runs --cause host                                a cause, a group of causes, or words of the failure
  ocrlab runs --failure 9b2f10                            every run with this fingerprint
  ocrlab runs --sort hmean --limit 5                      the five best
  ocrlab runs runs/A runs/B                               two runs and the settings in which they differ
  ocrlab runs --json | jq '.runs[] | select(.hmean > 0.9) | .run'

To execute a notebook, use `ocrlab run NOTEBOOK`.
"""


def arguments(parser: Parser) -> None:
    """Add the words of this command."""
    add = parser.add_argument
    add(
        "words",
        nargs="*",
        metavar="DIR | key=value",
        help="run folders or folders that contain them (default: runs), and conditions with = != < <= > >= (quote < "
        "and >)",
    )
    add("--status", action="append", default=[], help=f"only this status: {', '.join(run_list.STATUSES)} or failure")
    add(
        "--cause",
        metavar="CAUSE",
        help="only this cause: an id, a group such as gpumem, a pattern, or words of the failure",
    )
    add("--failure", metavar="ID", help="only failures with this fingerprint, or its first characters")
    add("--name", metavar="TEXT", help="only folders whose name contains TEXT, or matches a pattern with * and ?")
    add("--since", metavar="WHEN", help="only runs started since then: 90m, 12h, 3d, 2w or 2026-11-20")
    add(
        "--sort",
        metavar="KEY",
        default="started",
        help="sort by started, name, status, cause, hmean, time, a setting or a metric (default: started)",
    )
    add("--reverse", action="store_true", help="reverse the order: oldest or smallest first")
    add(
        "--limit",
        type=NATURAL,
        metavar="N",
        help=f"show at most N runs, 0 = all (default: {SCREEN} on a terminal, else 0)",
    )


@run_list.garbage_collection_paused()
def run(args: argparse.Namespace) -> Answer:
    """List the runs; raises ConfigError for words that cannot be read, RunError for a folder that cannot."""
    terminal = sys.stdout.isatty() and not args.json
    limit = args.limit if args.limit is not None else SCREEN if terminal else 0
    places, conditions = split_words(args.words)
    if not places:
        places, _ = split_words([DEFAULT])
    runs = run_list.list_runs(places)
    if importlib.util.find_spec("yaml") is None:
        print("ocrlab runs: no settings: they need a YAML parser (pip install pyyaml)", file=sys.stderr)
    chosen = query.filter_by_conditions(runs, conditions)
    for value, keep in (
        (args.status, query.filter_by_status),
        (args.cause, query.filter_by_cause),
        (args.failure, query.filter_by_failure),
        (args.name, query.filter_by_name),
        (args.since, query.filter_since),
    ):
        chosen = keep(chosen, value) if value else chosen
    ordered = query.sort_runs(chosen, args.sort, args.reverse)
    groups = query.group_failures(chosen)
    shown = ordered[:limit] if limit else ordered
    if args.json:
        keys = query.differing_settings(shown)  # of the settings only those in which the shown runs differ
        record = {
            "schema": SCHEMA,
            "folders": places,
            "total": len(runs),
            "matching": len(chosen),
            "usual": query.common_settings(shown, keys),
            "runs": [_run_record(run, keys) for run in shown],
            "failures": [
                {
                    "fingerprint": group.failure.id,
                    "title": group.failure.title,
                    "cause": group.failure.cause or None,
                    "count": len(group.runs),
                    "first": group.first,
                    "last": group.last,
                    "runs": [run.path for run in group.runs],
                }
                for group in groups
            ],
        }
        return Answer(record)
    width = shutil.get_terminal_size().columns if terminal else None
    return Answer({}, runs_table.page(runs, chosen, shown, groups, width))


def split_words(words: list[str]) -> tuple[list[str], list[query.Condition]]:
    """Return the folders and the conditions among words; raises ConfigError for what is neither."""
    places, conditions = [], []
    for word in words:
        condition = None if os.path.exists(word) else query.condition(word)
        if condition:
            conditions.append(condition)
            continue
        place = os.path.expanduser(word)
        if not os.path.isdir(place):
            raise _no_folder(word)
        places.append(place)
    return places, conditions


def _run_record(run: Run, keys: list[str]) -> dict[str, Any]:
    return {
        "run": run.path,
        "name": run.name,
        "status": run.status,
        "started": run.started or None,
        "ended": run.ended,
        "seconds": run.seconds,
        "hmean": run.hmean,
        "final": run.final,
        "steps": run.metrics.get("steps"),
        "cause": run.cause or None,
        "why": run.why or None,
        "fingerprint": run.failure.id if run.failure else None,
        "settings": {key: run.settings[key] for key in keys if key in run.settings},
        "metrics": run.metrics,
        "problem": run.problem or None,
    }


def _no_folder(word: str) -> ConfigError:
    """Return the error for a word that names no folder, with what was probably meant."""
    if word.endswith(".ipynb"):
        do = f"To execute it: ocrlab run {word}"
        return ConfigError(f"{word} is a notebook, and `ocrlab runs` lists run folders", need="a folder", do=do)
    if word == DEFAULT:
        return ConfigError("There is no folder runs", do="Train first with ocrlab train, or name a folder")
    if os.path.exists(word):
        return ConfigError(f"{word} is a file", need="a folder with run folders")
    key = word.isidentifier() or "@" in word
    hint = f"A condition with < or > must be quoted: '{word}>0.5'" if key else None
    need = "a folder with run folders, or a condition key=value"
    return ConfigError(f"There is no folder {word}", need=need, do=hint)
