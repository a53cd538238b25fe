"""Exit codes and signals: as a number, and as launchers, shells and Windows write them into a log."""

from __future__ import annotations

import re
import signal as signals

# NTSTATUS codes of a process that died on Windows, and the POSIX signal that means the same.
WINDOWS = {
    0xC0000005: "SIGSEGV",
    0xC000001D: "SIGILL",
    0xC0000094: "SIGFPE",
    0xC00000FD: "SIGSEGV",
    0xC0000374: "SIGABRT",  # heap corruption
    0xC0000409: "SIGABRT",
}
WRITTEN = re.compile(
    r"(?:[Ee]xit(?:ed)?(?:\s+(?:with|by))?(?:\s+(?:exit|non-zero))?[ _-]?(?:[Cc]odes?|status)?|exitcode|returncode"
    r"|[Rr]eturn code|\brc|died with|finished with exit code|terminated with)\s*[:=]?\s*(?:code\s*)?\(?"
    r"(?:\d{1,3} (?:and|or) )?(-?\d{1,10}|0x[0-9A-Fa-f]{8})\b",
    re.ASCII,
)
NAMED = re.compile(
    r"(?:signal\s*[=:]\s*|died with <Signals\.|interrupted by signal \d+:\s*|terminated (?:by|with) signal\s*[:=]?\s*"
    r"|Signal \d+ \(|killed by signal \d+ \(|caught signal \d+ \(|received signal\s+)(SIG[A-Z]{2,5})",
    re.ASCII,
)
SPAWNED = re.compile(r"exitcode|returncode|terminated with")  # who counts signals below zero; an IDE's -1 is none
CAUGHT = re.compile(
    r"(?:Caught signal|got signal|received signal|killed by signal|terminated by signal)[: ]+(\d{1,2})\b", re.ASCII
)


def name(code: int | None) -> str | None:
    """Return the signal that an exit code stands for (-9, 137, 0xC0000005), or None for an ordinary one."""
    if code is None:
        return None
    windows = WINDOWS.get(code & 0xFFFFFFFF)
    if windows:
        return windows
    number = -code if -64 < code < 0 else code - 128 if 128 < code < 192 else 0
    try:
        return signals.Signals(number).name
    except ValueError:
        return None


def find(text: str) -> list[tuple[str, int]]:
    """Return the signals that a text says a process died of, with the offset of the words, in order."""
    signals_ = [(match[1], match.start()) for match in NAMED.finditer(text)]
    for match in WRITTEN.finditer(text):
        code = int(match[1], 16) if match[1].startswith("0x") else int(match[1])
        if name(code) and (code != -1 or SPAWNED.search(text, max(match.start() - 20, 0), match.end())):
            signals_.append((str(name(code)), match.start()))
    for match in CAUGHT.finditer(text):
        signal = name(-int(match[1]))
        if signal:
            signals_.append((signal, match.start()))
    return sorted(signals_, key=lambda pair: pair[1])
