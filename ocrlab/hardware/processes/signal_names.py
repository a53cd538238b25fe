"""The file that turns a signal into words, and an exit code into a signal; standard library only."""

from __future__ import annotations

import signal

MEANINGS = {
    "SIGABRT": "a library gave up by itself: abort(), a C++ exception that nobody caught, or a failed check",
    "SIGBUS": "memory that was mapped is not there: /dev/shm is full, or a mapped file was cut",
    "SIGFPE": "an arithmetic fault in native code, mostly a whole number divided by zero",
    "SIGHUP": "the terminal or the session was closed",
    "SIGILL": "the CPU does not know an instruction that the program was built with",
    "SIGINT": "it was interrupted, as by Ctrl-C",
    "SIGKILL": "it was killed from outside: the kernel when memory ran out, a scheduler, or somebody",
    "SIGPIPE": "it wrote to a pipe that nobody reads any more",
    "SIGQUIT": "it was asked to quit and dump its core, as by Ctrl-\\",
    "SIGSEGV": "native code touched memory that does not belong to it",
    "SIGSYS": "a system call that this machine or container forbids",
    "SIGTERM": "it was asked to end: by a scheduler, a service manager, or somebody",
    "SIGTRAP": "a breakpoint, or a check in native code that failed",
    "SIGXCPU": "it used more CPU time than its limit",
    "SIGXFSZ": "it wrote a larger file than its limit",
}


def name(number: int) -> str:
    """Return the name of a signal (9 is SIGKILL); real-time and unknown ones as `signal 40`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def of_exit(code: int | None) -> str | None:
    """Return the signal that an exit code stands for, as `subprocess` (-11) or a shell (139) has it; None for none."""
    if code is None:
        return None
    number = -code if code < 0 else code - 128
    numbers = {member.value for member in signal.Signals}
    return name(number) if code < 0 or number in numbers else None


def meaning(name: str | None) -> str:
    """Return in words why a process dies of a signal; empty where nothing general can be said."""
    return MEANINGS.get(name or "", "")
