"""A log, run folder, notebook or standard input as an Incident, with earlier verdicts and replays of the same run.

Of a huge file only an excerpt is read.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ocrlab import safe_read
from ocrlab.debug.diagnosis import catalogue, final_exception
from ocrlab.debug.diagnosis.explained_verdict import read_edit
from ocrlab.debug.diagnosis.log_text import HEAD, junk, read_excerpt
from ocrlab.debug.flight_record import last_position, training_findings
from ocrlab.errors import DataError
from ocrlab.hardware.processes import exit_codes
from ocrlab.records import Cause, Evidence, Incident, RuledOut, Verdict, fitting, from_json
from ocrlab.run_folder import launcher

ENDINGS = ("failed", "killed", "hung", "suspected")
REPLAYED = {"nonfinite": "num.nonfinite", "target": "data.index_range", "index": "data.index_range"}
OURS = ("KernelDied", "CellStuck")  # errors that ocrlab itself puts into a notebook: its words, not the program's
LOGS = ("*.log", "log.txt", "logs.txt", "output.txt", "stdout.txt", "stderr.txt", "*.out", "*.err", "slurm-*")
SENTINELS = (".FAILURE", ".RUNNING", ".SUCCESS")
BINARY = ("\x7fELF", "\ufffdPNG", "PK\x03\x04", "\x1f\ufffd\x08", "BZh9", "\ufffd7zXZ", "(\ufffd/\ufffd")  # as UTF-8
WATCHERS = ("Killed", "Failed", "Hung")  # types of the records that `ocrlab watch` writes: no exception of the program
RESULT = "application/vnd.ocrlab.result+json"


NUMBER = (int, float)
LINE = {"file": str, "line": int, "text": str}
END = {"time": NUMBER, "how": str, "error": dict}
RANK = {"rank": int, "pid": int, "pids": [int], "exit_code": int, "signal": str, "end": END, "world": int, "file": str}
EVERY_RANK: dict[str, Any] = {"pids": [], "exit_code": None, "signal": None, "end": None, "line": None}
END_OF_PROGRAM = {"status": str, "exit_code": int, "signal": str}
CAUSE = {"id": str, "confidence": NUMBER, "evidence": [LINE], "fix": str, "explanation": str, "edit": dict}
VERDICT = {"symptom": str, "causes": [CAUSE], "ruled_out": [{"id": str, "why": str}], "missing": [str]}
FACTS = {  # as `records.Incident` lists them; what a stranger's folder has in another form is not read
    **dict.fromkeys(("oom_kills", "main_pid", "workers", "fd_limit", "shm_free_bytes", "disk_free_bytes"), int),
    **dict.fromkeys(("memory_limit_bytes", "memory_peak_bytes", "address_space_bytes"), NUMBER),
    **dict.fromkeys(("silent_seconds", "run_seconds"), NUMBER),
    **dict.fromkeys(("ended_by", "platform", "record", "silent"), str),
    **dict.fromkeys(("torch", "explained", "verdict"), dict),
    "pids": [int],
    "oom_pids": [int],
    "cpu_flags": [str],
    "gpu": (bool, dict),
    "exits": [{"pid": int, "role": str, "exit_code": int, "signal": str}],
    "ranks": [RANK],
    "hang": {"id": str, "confidence": NUMBER, "pid": int, "why": str, "evidence": [LINE]},
    "heartbeat": {"step": NUMBER, "phase": str, "age": NUMBER, "time": NUMBER},
    "memory": {"seconds": [NUMBER], "tree": [NUMBER], "shm": [NUMBER], "group": dict, "processes": [dict]},
    "gpus": {"cards": [dict]},
}


def read_facts(stored: object) -> dict[str, Any]:
    """Return the facts that a run folder stores, as far as they have the form that a diagnosis reads."""
    facts: dict[str, Any] = fitting(stored, FACTS) or {}
    ranks = [{**EVERY_RANK, **row} for row in facts.get("ranks", ()) if {"rank", "pid"} <= row.keys()]
    for row in ranks:
        row["end"] = {"time": 0.0, **row["end"]} if row["end"] else None
    return {**facts, "ranks": ranks} if "ranks" in facts else facts


def read_ending(stored: object) -> dict[str, Any]:
    """Return status (`log` where it is not known), exit code and signal as a verdict or an ending stores them."""
    end = fitting(stored, END_OF_PROGRAM) or {}
    status = end.get("status") if end.get("status") in ENDINGS else "log"
    return {"status": status, "exit_code": end.get("exit_code"), "signal": end.get("signal")}


def read_verdict(stored: object) -> Verdict | None:
    """Return a stored verdict that names causes of the catalogue; None for any other, so that it is made again."""
    row, entries = fitting(stored, VERDICT) or {}, catalogue.load().entries
    causes = []
    for cause in row.get("causes") or ():
        if entry := entries.get(cause.get("id")):
            lines = [
                Evidence(str(line.get("file")), line.get("line"), str(line.get("text")))
                for line in cause.get("evidence") or ()
            ]
            explanation, sure = cause.get("explanation"), float(cause.get("confidence") or 0.0)
            fix = (cause.get("fix") if explanation else "") or entry.fix
            edit = read_edit(cause.get("edit"))
            causes.append(Cause(entry.id, sure, lines, entry.experiment, fix, explanation, edit))
    ruled_out = [RuledOut(str(each.get("id")), str(each.get("why"))) for each in row.get("ruled_out") or ()]
    more: dict[str, Any] = {"symptom": row.get("symptom"), "ruled_out": ruled_out, "missing": row.get("missing") or []}
    return Verdict(**read_ending(stored), causes=causes, **more) if causes else None


def read_replay(run: Path) -> dict[str, Any] | None:
    """Return the newest answer of `ocrlab replay`, also one that has placed no fault; None where there is none."""

    def age(path: Path) -> tuple[int, int, str]:
        try:
            return path.stat().st_mtime_ns, len(path.name), path.name  # replay-10 after replay-9
        except OSError:
            return 0, 0, ""

    places = [run / "incident", run / "flight"]  # the latter of a run of which nobody has said that it failed
    for path in sorted((path for place in places for path in place.glob("replay*.json")), key=age, reverse=True):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            answer = json.loads(safe_read.read(path, safe_read.RECORD))
            if isinstance(answer, dict) and isinstance(answer.get("answer"), str):
                fault = answer.get("fault")
                name = path.name if path.parent == places[0] else f"flight/{path.name}"
                return {"file": name, "answer": answer["answer"], "fault": fault if isinstance(fault, dict) else None}
    return None


def add_replay(causes: list[Cause], facts: Mapping[str, Any]) -> list[Cause]:
    """Return the causes with the answer of a replay as evidence: of the cause that it shows, else of the first.

    An answer that names no fault is not evidence.
    """
    answer = facts.get("replay")
    fault = answer.get("fault") if isinstance(answer, Mapping) else None
    if not isinstance(answer, Mapping) or not isinstance(fault, Mapping):
        return causes
    line = Evidence(str(answer["file"]), None, str(answer["answer"]))
    is_segv = fault.get("kind") == "crash" and fault.get("signal") == "SIGSEGV"
    name = "native.segv" if is_segv else REPLAYED.get(str(fault.get("kind")))
    if name is None:
        return [replace(cause, evidence=[*cause.evidence, line]) for cause in causes[:1]] + causes[1:]
    lines = [line, *(each for cause in causes if cause.id == name for each in cause.evidence)]
    sure = max([catalogue.Level.DECISIVE.value, *(cause.confidence for cause in causes)])  # it failed again
    old = next((cause for cause in causes if cause.id == name), None)
    shown = replace(old or Cause(name, sure, [], "", catalogue.load().entries[name].fix), evidence=lines)
    return [replace(shown, confidence=sure, experiment=""), *(cause for cause in causes if cause.id != name)]


def read_incident(path: str) -> Incident:
    """Return the incident at a path, `-` for stdin; raises DataError where there is nothing to read."""
    if path == "-":
        return Incident(texts={"log_tail.txt": _text(read_excerpt(sys.stdin.buffer), "stdin")})
    place = Path(path)
    try:
        if place.is_dir():
            return read_run_folder(place)
        if place.suffix == ".ipynb":
            return read_notebook(place)
        with safe_read.open_file(place, descriptors=True) as file:
            return Incident(texts={place.name: _text(read_excerpt(file), path)})
    except OSError as error:
        need = "a log, a run folder or a notebook"
        got = error.strerror or str(error)
        raise DataError(
            f"{path} cannot be read", got=got, need=need, missing=isinstance(error, FileNotFoundError)
        ) from error


def _text(text: str, path: str) -> str:
    """Return a text; raises DataError where its beginning shows that it is none: a program, an archive, an image."""
    start = text[:HEAD]
    if start.startswith(BINARY) or (len(start) > 64 and junk(start)):
        raise DataError(
            f"{path} is not a text file", got="bytes of a binary file", need="a log, a run folder or a notebook"
        )
    return text


def read_run_folder(place: Path) -> Incident:
    """Return the incident of a run folder: its failure record, incident/ and flight/, else the logs that lie in it.

    What `ocrlab replay` has found there since is in its facts, as `replay`, what a recorded training noticed about
    itself as `learned`, and where its flight record ends as `record`, unless the run goes on or has ended well.
    """
    texts: dict[str, str] = {}
    old = next(filter(None, (_record(place / name) for name in SENTINELS)), {})
    error = old.get("error")
    if isinstance(error, dict) and error.get("type") not in WATCHERS:
        line = f"{error.get('type', 'Error')}: {error.get('message', '')}"
        texts["traceback.txt"] = str(error.get("traceback") or line)
    inside = place / "incident"
    for name in ("log_tail.txt", "traceback.txt", "stacks.txt", "kernel_log.txt", final_exception.ERRORS):
        source = next((file for file in (inside / name, place / name) if file.is_file()), None)
        if source:
            with safe_read.open_file(source) as file:
                texts[name] = read_excerpt(file)
    logs = list(dict.fromkeys(file for name in LOGS for file in sorted(place.glob(name)) if file.is_file()))
    if not (texts or old or inside.is_dir() or (place / "flight").is_dir()) and len({log.stem for log in logs}) > 1:
        got, need = ", ".join(log.name for log in logs[:4]), "one of them, or a run folder"
        raise DataError(f"{place} is not a run folder and contains several logs", got=got, need=need)
    for file_ in [*logs, *sorted((place / "flight").glob("*stack*.txt"))][:8]:
        with safe_read.open_file(file_) as file:
            texts.setdefault("stacks.txt" if "stack" in file_.name else file_.name, read_excerpt(file))
    answer, noticed = read_replay(place), training_findings.read(place)
    incident_ = _with_status(inside / "verdict.json", texts, old)
    record = _record_end(place, incident_.status, spoken=noticed is not None)
    if not (texts or old or answer or noticed is not None or record):
        recorded = next((place / "flight").glob("ring-*.bin"), None)
        do = f"Run its last step again: ocrlab replay {place}" if recorded else None
        raise DataError(
            f"{place} contains no log", need=f"a run folder, or a file such as {', '.join(LOGS[:4])}", do=do
        )
    since = {"replay": answer or None, "learned": noticed, "record": record or None}
    facts = {name: value for name, value in since.items() if value is not None}
    return replace(incident_, facts={**incident_.facts, **facts})


def _with_status(verdict: Path, texts: dict[str, str], record: dict[str, Any]) -> Incident:
    """Return an incident with the status, exit code and signal that an earlier verdict or the sentinel holds."""
    before = _record(verdict)
    end = read_ending(before)
    if not before.get("status") and record.get("status") == "failure":
        end["status"] = "failed"
    end["signal"] = end["signal"] or exit_codes.signal_of_exit(end["exit_code"])
    facts = _record(verdict.with_name("facts.json")) or before.get("facts") or _unwatched(verdict.parents[1], record)
    return Incident(**end, texts=texts, facts=read_facts(facts))


def _record_end(run: Path, status: str, *, spoken: bool) -> str:
    """Return where the flight record of a run ends that did not end well, as far as anybody has said how it ended.

    `spoken` tells whether the recorder itself had a last word: without a sentinel and without one it was killed.
    """
    failed, running, well = ((run / name).is_file() for name in SENTINELS)
    unknown = status == "log" and (last_position.has_live_process(run) or (spoken and not running))
    return "" if not failed and (well or unknown) else last_position.position_text(run)


def _unwatched(run: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Return what a failed run without a watcher has kept: whether its machines have a GPU, and of its ranks."""
    if record.get("status") != "failure":
        return {}
    rows = _ranks(run)
    gpus = [row.get("gpu") for row in rows] or [_record(run / "environment.json").get("gpu")]
    facts: dict[str, Any] = {"gpu": any(gpus)} if all(isinstance(row, bool) for row in gpus) else {}
    return {**facts, "ranks": rows} if any(row.get("end") for row in rows) else facts


def _ranks(run: Path) -> list[dict[str, Any]]:
    """Return the ranks by their own records: what each has said of its end, where its flight record stops, and the
    exit code that a watcher of the same processes may have left here."""
    inside, where = run / "flight", last_position.rank_positions(run)
    codes = {(row.get("rank"), row.get("pid")): row.get("exit_code") for row in launcher.exits(inside)}
    rows = []
    for row in launcher.read(inside):
        code = codes.get((row["rank"], row.get("pid")))
        signal = exit_codes.signal_of_exit(code) if isinstance(code, int) and code < 0 else None
        gone: dict[str, Any] = {"pids": [], "state": "", "exit_code": code, "signal": signal}
        source = {"file": f"flight/{launcher.FOLDER}/rank-{row['rank']}.json", "line": None}
        rows.append({**gone, **where.get(row.get("pid", 0), {}), **row, **source})
    return rows


def _record(file: Path) -> dict[str, Any]:
    """Return a JSON file of a run; empty without one, or where a crash has torn it: the logs beside it still speak."""
    try:
        return from_json(safe_read.read(file, safe_read.RECORD), source=str(file)) if file.is_file() else {}
    except (DataError, OSError) as error:  # torn, huge, or not a file
        if isinstance(error, DataError) and "newer" in error.what:
            raise
        return {}


def read_notebook(place: Path) -> Incident:
    """Return the incident of an executed notebook: outputs and errors of its cells, in their order.

    One that `ocrlab run` executed has stored its ending and verdict too.
    """
    try:
        cells = json.loads(safe_read.read(place, safe_read.RECORD)).get("cells", [])
    except (ValueError, AttributeError, RecursionError) as error:
        got = "JSON that is not an object" if isinstance(error, AttributeError) else str(error)
        raise DataError(f"{place} is not a notebook", got=got, need="an executed .ipynb file") from error
    outputs: list[dict[str, Any]] = []
    for cell in cells if isinstance(cells, list) else ():
        rows = cell.get("outputs") if isinstance(cell, dict) else None
        outputs += [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    facts: dict[str, Any] = {"cells": cells} if any(output.get("output_type") == "error" for output in outputs) else {}
    texts = {place.name: "\n".join(part for output in outputs for part in _output(output))}
    results = [data[RESULT] for output in outputs if isinstance(data := output.get("data"), dict) and RESULT in data]
    if not results or not isinstance(results[-1], dict):
        return Incident(texts=texts, facts=facts)
    stored = results[-1].get("ending")
    ending: dict[str, Any] = stored if isinstance(stored, dict) else {}
    end, verdict, status = read_ending(ending), ending.get("verdict"), ending.get("exit_status")
    if results[-1].get("outcome") == "PASS":
        end["exit_code"] = 0
    elif end["exit_code"] is None and end["status"] == "failed" and isinstance(status, int):
        end["exit_code"] = status  # the kernel lived on; what ocrlab itself ended with
    return Incident(**end, texts=texts, facts={**facts, "verdict": verdict} if isinstance(verdict, dict) else facts)


def _output(output: dict[str, Any]) -> list[str]:
    if output.get("output_type") == "error":
        if output.get("ename") in OURS:
            return []
        lines = output.get("traceback")
        return [*map(str, lines if isinstance(lines, list) else ()), f"{output.get('ename')}: {output.get('evalue')}"]
    bundle = output.get("data")
    data: dict[str, Any] = bundle if isinstance(bundle, dict) else {}
    if RESULT in data:  # our own words
        return []
    text = output.get("text") or data.get("text/plain") or ""
    text = "".join(map(str, text)) if isinstance(text, list) else str(text)
    return [text.rstrip("\n")] if text.rstrip("\n") else []
