"""The stack of a failure: the program's own line with the lines around it, and the whole as it was written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ocrlab.debug.diagnosis import parse_stacks
from ocrlab.debug.diagnosis.failure_place import FRAME, TRACEBACK
from ocrlab.debug.diagnosis.hangs import stack_patterns
from ocrlab.hardware.processes.stack_types import Frame

AROUND = 4  # lines of source above and below the failing one
LONGEST = 12_000  # characters of a stack
SOURCE = 2 * 2**20  # bytes of a source file that is opened
FATAL = re.compile(r"^(?:Fatal Python error|Current thread 0x|Thread 0x)", re.MULTILINE)
CELL = re.compile(r"^\s*Cell In ?\[\d+\], line \d+|^-{20,}$", re.MULTILINE)
ENDS = re.compile(r"^(?:\w+\.){0,6}\w{1,80}(?::.*)?$")


@dataclass(frozen=True)
class Stack:
    """Where it failed: the file of the incident that says so, the frame, source around it, and the whole text."""

    file: str = ""
    frame: Frame | None = None
    source: str = ""
    why_none: str = "the source is not on this machine"
    whole: str = ""


def of(texts: Mapping[str, str], here: bool) -> Stack:
    """Return the stack that tells most: of a hang its stacks, else the last traceback or dump of the logs.

    Source files are opened only where the program ran `here`: a stranger's folder may name any file.
    """
    if texts.get("stacks.txt", "").strip():
        return _hang(texts["stacks.txt"], here)
    for name in ("traceback.txt", *(name for name in texts if name not in ("traceback.txt", "kernel_log.txt"))):
        whole = last(texts.get(name, ""))
        if whole:
            return _with_source(name, _innermost(whole), whole, here)
    return Stack()


def last(text: str) -> str:
    """Return the last traceback of a text, with the exception that ends it; else the dump of a fatal signal."""
    at = text.rfind(TRACEBACK)
    if at < 0:
        match = FATAL.search(text) or CELL.search(text)
        return text[match.start() :][:LONGEST].rstrip() if match else ""
    at = text.rfind("\n", 0, at) + 1
    lines: list[str] = []
    for line in text[at:].splitlines():
        lines.append(line)
        ended = len(lines) > 1 and line.strip() and not line.startswith((" ", "\t")) and ENDS.match(line)
        if ended and TRACEBACK not in line:
            break
    whole = "\n".join(lines)
    return whole if len(whole) <= LONGEST else f"{whole[: LONGEST // 2]}\n...\n{whole[-LONGEST // 2 :]}"


def _innermost(whole: str) -> Frame | None:
    """Return the innermost frame of the program's own, else of anybody's; a dump lists the newest call first."""
    matches = [match for line in whole.splitlines() if (match := FRAME.match(line))]
    frames = [Frame(match["function"], match["file"], int(match["line"])) for match in matches]
    if TRACEBACK in whole:
        frames.reverse()
    return next((frame for frame in frames if not stack_patterns.is_library(frame)), next(iter(frames), None))


def _hang(text: str, here: bool) -> Stack:
    frames = [frame for stack in parse_stacks.parse(text) for thread in stack.threads[:1] for frame in thread.frames]
    own = next((frame for frame in frames if frame.line and not stack_patterns.is_library(frame)), None)
    return _with_source("stacks.txt", own, text[:LONGEST].rstrip(), here)


def _with_source(name: str, frame: Frame | None, whole: str, here: bool) -> Stack:
    if frame is None or not frame.line:
        return Stack(name, None, "", "no frame of the program is in it", whole)
    if not here:
        return Stack(
            name, frame, "", "it is not known that it ran on this machine, so that no source was opened", whole
        )
    source = around(Path(frame.file), frame.line)
    return Stack(name, frame, source, "" if source else Stack.why_none, whole)


def around(path: Path, number: int) -> str:
    """Return the lines around a line of a source file, numbered, an arrow at that one; empty where it is not there."""
    try:
        if path.suffix not in (".py", ".pyx", ".ipy", "") or not path.is_file() or path.stat().st_size > SOURCE:
            return ""
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    if not 0 < number <= len(lines):
        return ""
    first, end = max(1, number - AROUND), min(len(lines), number + AROUND)
    return "\n".join(f"{'>' if n == number else ' '} {n:>5}  {lines[n - 1]}" for n in range(first, end + 1))
