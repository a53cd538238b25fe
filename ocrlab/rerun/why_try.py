"""Does the remedy work? The program run again as it was, which must fail again, and then with the remedy.

Both run watched, under the limits of the failed run, and no longer than asked for. A program that is still going twice
as long after it failed before counts as mended.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ocrlab.diagnose.oom_known import MEMORY, Known
from ocrlab.diagnose.oom_remedy import Remedy, smaller_batch
from ocrlab.diagnose.oom_split import Split
from ocrlab.errors import ConfigError, OcrlabError
from ocrlab.flight import record_program
from ocrlab.rerun.training import QUIET
from ocrlab.rerun.why_limit import Limits, under
from ocrlab.watch.supervise import Options, watch

STEPS, LONGER = 20, 2  # optimiser steps of a training, for heaps grow on; how much longer a mended run must last
MORE = 5.0  # seconds besides
RUNGS = 4  # batch sizes tried, each half of the one before
BATCH = re.compile(r"(?P<head>(?:^|--?|[.\w]*[._-])(?:batch[-_]?size|batch|bs|b)[= ]?)(?P<number>\d*)$")
WORKERS = re.compile(r"(?P<head>(?:^|--?|[.\w]*[._-])(?:num[-_]?workers|workers|j)[= ]?)(?P<number>\d*)$")
HOST = ("killed by the host", "control group", "refused by the host", "shared memory", "pinned memory")


@dataclass(frozen=True)
class Ran:
    """One run: what was set, how it ended (success, failed, killed, went on), its first cause, seconds."""

    change: str
    status: str
    cause: str | None
    seconds: float

    @property
    def well(self) -> bool:
        """Tell whether it did not run out of memory."""
        return self.status in ("success", "went on")


@dataclass(frozen=True)
class Variant:
    """A command to be run, and what is changed in it."""

    change: str
    words: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()


def trial(
    known: Known, found: Split, remedy: Remedy, program: Sequence[str], timeout: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """Return {"works", "change", "runs", "limits", "sentence"}; works is None where nothing follows.

    Raises ConfigError where nobody knows what to run, or for a time that is none.
    """
    if not timeout > 0:
        raise ConfigError("--timeout is no time", got=timeout, need="seconds, more than 0")
    place = Path(tempfile.mkdtemp(prefix="ocrlab-why-"))
    limits = _limits(known)
    told: dict[str, Any] = {"works": None, "change": None, "runs": [], "limits": str(limits)}
    try:
        before, *variants = _variants(known, found, remedy, list(program), place)
        if not variants:
            return {**told, "sentence": "Nothing of this can be tried by a setting."}
        say(f"as it was, under {limits}")
        first, problem = _run(before, limits, place / "0", timeout)
        told["runs"].append(asdict(first))
        if first.well or not (first.cause or "").startswith(MEMORY):
            how = "ended well" if first.status == "success" else f"ended as {first.status}, {first.cause or 'unknown'}"
            how = f"still went on after {first.seconds:.0f} s" if first.status == "went on" else how
            why = f" ({problem})" if problem else ""
            return {**told, "sentence": f"As it was it {how}{why}, so nothing shows that the remedy works."}
        for number, variant in enumerate(variants, 1):
            say(f"with {variant.change}")
            ran, _ = _run(variant, limits, place / str(number), min(timeout, LONGER * first.seconds + MORE))
            told["runs"].append(asdict(ran))
            if ran.well:
                how = "ends well" if ran.status == "success" else f"goes on for {ran.seconds:.0f} s"
                also = "".join(f", with {one.change} too" for one in variants[: number - 1])
                before_it = f"as it was it fails again after {first.seconds:.1f} s{also}"
                text = f"Tried: {before_it}; with {variant.change} it {how}."
                return {**told, "works": True, "change": variant.change, "sentence": text}
        text = f"Tried: as it was it fails again, and with {variants[-1].change} too."
        return {**told, "works": False, "sentence": text}
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _limits(known: Known) -> Limits:
    """Return the limits of the failed run, where it was watched."""
    address = known.facts.get("address_space_bytes")
    return Limits(int(address) if address else None, known.group_limit)


def _variants(known: Known, found: Split, remedy: Remedy, program: list[str], place: Path) -> Iterator[Variant]:
    """Yield the command as it was, then with each change that is worth a try."""
    ours = not program and bool(known.config) and known.folder is not None
    words, env = (_training(known, place), {}) if ours else _command(known, program)
    yield Variant("", tuple(words), tuple(env.items()))
    if remedy.environment:
        line = " ".join(f"{name}={value}" for name, value in remedy.environment.items())
        yield Variant(line, tuple(words), tuple({**env, **remedy.environment}.items()))
    if ours:
        for settings in _rungs(known, remedy):
            yield Variant(" ".join(settings), (*words, *settings))
    elif found.kind in ("capacity", *HOST):
        patterns = (WORKERS, BATCH) if found.kind in HOST else (BATCH,)
        for pattern in patterns:
            for changed, change in _halved(words, pattern):
                yield Variant(change, tuple(changed), tuple(env.items()))


def _rungs(known: Known, remedy: Remedy) -> Iterator[tuple[str, ...]]:
    """Yield the proposed settings, then ever smaller batches."""
    if not remedy.settings:
        return
    yield remedy.settings
    said = {word.partition("=")[0]: word.partition("=")[2] for word in remedy.settings}
    config = {**known.config, **{name: int(value) for name, value in said.items() if value.isdigit()}}
    for _ in range(RUNGS - 1):
        settings = smaller_batch(config)
        if not settings:
            return
        said |= {word.partition("=")[0]: word.partition("=")[2] for word in settings}
        config |= {name: int(value) for name, value in said.items() if value.isdigit()}
        yield tuple(f"{name}={value}" for name, value in said.items())


def _training(known: Known, place: Path) -> list[str]:
    """Return the words of a short training as the run's config says."""
    assert known.folder is not None, "its config lies in it"
    steps = min(max(STEPS, (known.step or 0) + 2), 10 * STEPS)
    quiet = {**QUIET, "trainer.max_steps": steps, "trainer.val_every": steps, "runs": str(place / "runs")}
    said = [f"{name}={'null' if value is None else str(value).lower() if isinstance(value, bool) else value}"
            for name, value in quiet.items()]  # fmt: skip
    return [sys.executable, "-m", "ocrlab", "train", "--config", str(known.folder / "config.yaml"), *said]


def _command(known: Known, program: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the words and variables of any other program: as given, or as its flight record has it."""
    if program:
        return program, {}
    if known.folder is not None:
        try:
            told = record_program.read(known.folder)
        except (OcrlabError, OSError):
            told = {}
        argv = [str(word) for word in told.get("argv") or ()]
        if len(argv) > 1 and not told.get("interactive"):
            folder, python = str(told.get("cwd") or "."), str(told.get("executable") or argv[0])
            change = [
                sys.executable,
                "-c",
                "import os, sys; os.chdir(sys.argv[1]); os.execvp(sys.argv[2], sys.argv[2:])",
            ]
            kept = {str(name): str(value) for name, value in (told.get("environment") or {}).items()}
            return [*change, folder, python, *argv[1:]], kept
    raise ConfigError(
        "Nobody knows what to run again", need="a run of `ocrlab train`, or the program", do="--try -- COMMAND"
    )


def _halved(words: Sequence[str], pattern: re.Pattern[str]) -> Iterator[tuple[list[str], str]]:
    """Yield the words with a number (`--batch-size 8`, `batch_size=8`) halved again and again, and what was changed."""
    for index, word in enumerate(words):
        match = pattern.search(word)
        if match is None or (index and words[index - 1] == "-m"):
            continue
        apart = not match["number"] and index + 1 < len(words) and words[index + 1].isdigit()
        text = words[index + 1] if apart else match["number"]
        number = int(text) if text else 0
        least = 0 if pattern is WORKERS else 1
        for _ in range(RUNGS):
            if number <= least:
                return
            number //= 2
            changed = list(words)
            changed[index + 1 if apart else index] = str(number) if apart else f"{match['head']}{number}"
            yield changed, f"{word} {number}" if apart else changed[index]
        return


def _run(variant: Variant, limits: Limits, place: Path, timeout: float) -> tuple[Ran, str]:
    """Run a command under the limits for `timeout` seconds at most."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path, **dict(variant.environment)}
    with under(limits, variant.words) as (words, problem):
        began = time.monotonic()
        options = Options(place, silence=max(timeout, 10.0), timeout=timeout, on_hang="report")
        ended = watch(words, options, output=lambda _stream, _data: None, env=env)
        seconds = time.monotonic() - began
    status = "went on" if ended.status in ("hung", "suspected") else ended.status
    cause = ended.verdict.causes[0].id if ended.verdict and ended.verdict.causes else None
    return Ran(variant.change, status, None if status == "went on" else cause, round(seconds, 1)), problem
