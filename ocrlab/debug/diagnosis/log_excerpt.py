"""The part of a huge log that a diagnosis needs: its head, its tail, and the surroundings of its first errors."""

from __future__ import annotations

from typing import BinaryIO

from ocrlab.debug.diagnosis.log_lines import LEFT_OUT

HEAD, TAIL, AROUND, CHUNK = 64 * 1024, 256 * 1024, 8 * 1024, 1024 * 1024  # bytes
MOST_WINDOWS = 12
# Literals that stand in the first error of nearly every failure; bytes.find is fast enough for gigabytes.
MARKS: tuple[bytes, ...] = (
    b"Traceback (most recent call last)",
    b"CUDA error",
    b"Error:",
    b"out of memory",
    b"Fatal Python error",
)
MARKS += (b"terminate called", b"Killed", b"Xid", b"Assertion", b"oom-kill", b"CANCELLED", b"Segmentation fault")


def window(file: BinaryIO) -> str:
    """Return head, tail and the neighbourhood of the first errors of a stream; a line says what is left out.

    `log.clean` counts the lines left out, so that numbers stay true. Memory is bounded; raises OSError.
    """
    pieces: list[tuple[int, bytes]] = []  # number of its first line, counted from 0, and its text
    start = file.read(HEAD + TAIL)
    rest = file.read(CHUNK)
    if not rest:
        return start.decode("utf-8", errors="replace")
    pieces.append((0, start[:HEAD]))
    line, tail, chunk = 0, b"", start + rest
    while chunk:
        chunk += file.readline(CHUNK)
        if len(pieces) < MOST_WINDOWS:
            pieces += _marked(chunk, line, MOST_WINDOWS - len(pieces))
        line += chunk.count(b"\n")
        tail = (tail + chunk)[-TAIL:]
        chunk = file.read(CHUNK)
    pieces.append((line - tail.count(b"\n"), tail))
    return _joined(pieces)


def _marked(chunk: bytes, line: int, most: int) -> list[tuple[int, bytes]]:
    """Return the surroundings of the marks in a chunk that starts at a line."""
    pieces: list[tuple[int, bytes]] = []
    end = 0
    places = sorted(place for mark in MARKS if (place := chunk.find(mark)) >= 0)
    for place in places[:most]:
        if place < end:
            continue
        begin = chunk.rfind(b"\n", 0, max(place - AROUND // 4, 0)) + 1
        end = min(place + AROUND, len(chunk))
        pieces.append((line + chunk.count(b"\n", 0, begin), chunk[begin:end]))
    return pieces


def _joined(pieces: list[tuple[int, bytes]]) -> str:
    lines: dict[int, str] = {}
    for start, data in pieces:
        for offset, text in enumerate(data.decode("utf-8", errors="replace").split("\n")):
            if len(text) > len(lines.get(start + offset, "")):
                lines[start + offset] = text
    last, parts = -1, []
    for number in sorted(lines):
        if number - last > 1:
            parts.append(LEFT_OUT.format(number - last - 1))
        parts.append(lines[number])
        last = number
    return "\n".join(parts)
