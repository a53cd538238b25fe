"""What every benchmark writes: a dated Markdown page with command, machine and table, and its figures as JSON."""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ocrlab.hardware import host

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
SHOWN = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16")  # what decides a step
LOAD = os.getloadavg()[0]  # read at import: before the benchmark adds its own
FIGURES: list[dict[str, Any]] = []  # of this benchmark, as `figure` adds them


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return an argument parser that shows the docstring of the benchmark and knows `--save` and `--json`."""
    command = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument(
        "--save",
        action="store_true",
        help="also write the page to benchmarks/results/DATE-NAME.md, the figures to NAME.json",
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file, as JSON")
    return command


def markdown(header: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table, columns padded so that it also reads well in a terminal."""
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def machine_line(environment: Mapping[str, Any]) -> str:
    """Return one line about a machine, from `host.environment()` or the `environment.json` of a run folder."""
    flags = [flag for flag in SHOWN if flag in environment.get("cpu_flags", ())]
    memory = environment.get("memory_bytes")
    facts = [
        environment.get("cpu_name") or "unknown processor",
        f"{environment.get('cores', '?')} usable cores",
        f"instruction sets {' '.join(flags) or 'unknown or older than avx2'}",
        f"{memory / 2**30:.0f} GiB" if memory else "unknown memory",
        f"Python {environment.get('python', '?')}",
        f"torch {environment.get('packages', {}).get('torch', 'absent')}",
        f"ocrlab {environment.get('revision') or 'of no known revision'}",
    ]
    return ", ".join(facts)


def page(title: str, body: str, *, environment: Mapping[str, Any] | None = None, date: str | None = None) -> str:
    """Return a whole result: title, date, command, machine and `body`.

    Without `environment` the machine is this one, now; a finished training brings its own, and its own `date`.
    """
    here = environment is None
    machine = machine_line(host.environment() if environment is None else environment)
    load = f", load {LOAD:.1f} before the start" if here else ""
    head = [f"# {title}", f"{date or today()}, `{command(sys.argv)}`", f"Machine: {machine}{load}."]
    return "\n\n".join([*head, body.strip()]) + "\n"


def figure(question: str, value: Any, unit: str, *, limit: str | None = None, peer: str | None = None) -> None:
    """Add a figure to those that `publish` writes: what was asked, a number (or a text with several), its unit.

    `limit` is "<= 1.2", ">= 0.9" or words; `peer` names whose figure it is, or whom ours is compared with.
    """
    FIGURES.append({"question": question, "value": value, "unit": unit, "limit": limit, "peer": peer})


def publish(
    name: str,
    text: str,
    args: argparse.Namespace,
    *,
    environment: Mapping[str, Any] | None = None,
    date: str | None = None,
) -> Path | None:
    """Print a page; with `--save` write it to `results/DATE-NAME.md`, or -2, -3 where one is, and return the path.

    The figures go to `results/NAME.json` with `--save`, where older ones become history, and to the file of `--json`.
    """
    print(text)
    there = host.environment() if environment is None else environment
    about = {"date": date or today(), "commit": there.get("revision"), "command": command(sys.argv)}
    about |= {"machine": machine_line(there), "schema": 1}
    rows = [about | row for row in FIGURES]
    if args.json:
        write_rows(args.json, rows)
    if args.save:
        file = RESULTS / f"{name}.json"
        write_rows(file, with_history(json.loads(file.read_text(encoding="utf-8")) if file.exists() else [], rows))
    if not args.save:
        return None
    tails = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    paths = (RESULTS / f"{date or today()}-{name}{tail}.md" for tail in tails)
    path = next(path for path in paths if not path.exists())
    path.write_text(text, encoding="utf-8")
    print(f"written: {os.path.relpath(path)}", file=sys.stderr)
    return path


def with_history(old: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return old and new rows as one list: a figure that was measured again keeps its place and its older values.

    What only `scoreboard.py` uses (area, title, set, peer_value) stays; a figure that was not measured again stays too.
    """
    again = {row["question"]: row for row in new}
    rows = []
    for row in old:
        if newer := again.pop(row["question"], None):
            before = {"date": row["date"], "value": row["value"], "note": row["machine"]}
            row = {**row, **{key: value for key, value in newer.items() if value is not None}}
            row["history"] = [before, *row.get("history", [])]
        rows.append(row)
    return [*rows, *again.values()]


def write_rows(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write figures as JSON, one row a line."""
    lines = ",\n".join(" " + json.dumps(row, ensure_ascii=False, default=float) for row in rows)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def today() -> str:
    """Return the date as YYYY-MM-DD."""
    return datetime.date.today().isoformat()


def judged(met: bool | None) -> str:
    """Return a limit's fate in words; None where it does not apply."""
    return {True: "met", False: "NOT met", None: "not judged"}[met]


def command(argv: Sequence[str]) -> str:
    """Return a command line as it is typed elsewhere: from the root of the repository, no folders of this machine."""
    return " ".join(["python", f"benchmarks/{Path(argv[0]).name}", *map(portable, argv[1:])])


def portable(word: str) -> str:
    """Return one word of a command line; an absolute path becomes relative to the repository, or PATH if far away."""
    key, sign, value = word.rpartition("=")
    if not Path(value).is_absolute():
        return word
    near = os.path.relpath(value, ROOT)
    return f"{key}{sign}{'PATH' if near.startswith('../..') else near}"
