"""Exit codes into signals, and signals into words; standard library only.

Codes come from `subprocess` (-11), from a shell (139), from Windows (0xC0000005), or are written in a log.
"""

from __future__ import annotations

import re
from signal import Signals

MEANINGS = {
    "SIGABRT": "a library ended the process: abort(), a C++ exception that nobody caught, or a failed check",
    "SIGBUS": "memory that was mapped is not there: /dev/shm is full, or a mapped file was cut",
    "SIGFPE": "an arithmetic fault in native code, mostly a whole number divided by zero",
    "SIGHUP": "the terminal or the session was closed",
    "SIGILL": "the CPU does not know an instruction that the program was built with",
    "SIGINT": "it was interrupted, as by Ctrl-C",
    "SIGKILL": "it was killed from outside: the kernel when memory ran out, a scheduler, or a user",
    "SIGPIPE": "it wrote to a pipe whose reader has ended",
    "SIGQUIT": "it was asked to quit and dump its core, as by Ctrl-\\",
    "SIGSEGV": "native code touched memory that does not belong to it",
    "SIGSYS": "a system call that this machine or container forbids",
    "SIGTERM": "it was asked to end: by a scheduler, a service manager, or a user",
    "SIGTRAP": "a breakpoint, or a check in native code that failed",
    "SIGXCPU": "it used more CPU time than its limit",
    "SIGXFSZ": "it wrote a larger file than its limit",
}
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
SIGNAL_NUMBERS = {member.value for member in Signals}


def signal_name(number: int) -> str:
    """Return the name of a signal (9 is SIGKILL); real-time and unknown ones as `signal 40`."""
    return Signals(number).name if number in SIGNAL_NUMBERS else f"signal {number}"


def signal_of_exit(code: int | None) -> str | None:
    """Return the signal that an exit code stands for, None for an ordinary code."""
    if code is None:
        return None
    number = -code if -64 <= code < 0 else code - 128 if code - 128 in SIGNAL_NUMBERS else 0
    return WINDOWS.get(code & 0xFFFFFFFF) or (signal_name(number) if number else None)


def meaning(signal: str | None) -> str:
    """Return in words why a process dies of a signal; empty where nothing general can be said."""
    return MEANINGS.get(signal or "", "")


def find_signals(text: str) -> list[tuple[str, int]]:
    """Return the signals that a text says a process died of, with the offset of the words, in order."""
    matches = [(match[1], match.start()) for match in NAMED.finditer(text)]
    for match in WRITTEN.finditer(text):
        code = int(match[1], 16) if match[1].startswith("0x") else int(match[1])
        if code == -1 and not SPAWNED.search(text, max(match.start() - 20, 0), match.end()):
            continue
        if signal := signal_of_exit(code):
            matches.append((signal, match.start()))
    matches += [(signal_name(int(match[1])), match.start()) for match in CAUGHT.finditer(text) if int(match[1])]
    return sorted(matches, key=lambda pair: pair[1])
