"""The process between the watcher and the program: nothing outlives it, and it outlives the watcher.

It is started by its path, as `python -I -S reaper.py`, and knows nothing of ocrlab. It is the parent of the program and
the reaper of every orphan below it (PR_SET_CHILD_SUBREAPER, prctl(2)), so that it hears how each of them ended. When
the watcher is gone, also by SIGKILL, it ends what is left and gives the terminal back. When it is killed itself, the
kernel kills the program with it (PR_SET_PDEATHSIG), and the watcher what the program has left. Only when both are
killed in one instant can a grandchild stay.

It speaks over a socket, one short text a message: `started PID`, `refused ERRNO`, `exit PID STATUS PEAK_KB`,
`stopped PID SIGNAL`, `empty`; and hears `group SIGNAL` and `all SIGNAL`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import sys
import termios
import time

SET_PDEATHSIG, SET_CHILD_SUBREAPER, SET_PTRACER = 1, 36, 0x59616D61  # linux/prctl.h
GRACE = 1.0  # seconds between SIGTERM and SIGKILL when the watcher is gone
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGCHLD)


def main(words: list[str]) -> None:
    """Run a command (`words` after control socket, pty or not, the user's terminal or -1, folder to remove)."""
    control, pty, screen = int(words[0]), words[1] == "pty", int(words[2])
    scratch, command = words[3], words[4:]
    for descriptor in (control, screen):
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)
    look = termios.tcgetattr(screen) if screen >= 0 else None
    wake = _listen()
    _prctl(SET_CHILD_SUBREAPER, 1)
    if pty:
        fcntl.ioctl(_terminal(), termios.TIOCSCTTY, 0)  # the controlling one of this session: tty_ioctl(4)
    pid, refused = _start(command, pty, os.getppid())
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # the streams are the program's alone: their end must be seen
        os.dup2(null, descriptor)
    if refused:
        os.waitpid(pid, 0)
        _send(control, f"refused {refused}")
        return
    _send(control, f"started {pid}")
    if _serve(control, wake, pid):
        return
    _end_all(control)
    if look is not None:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(screen, termios.TCSANOW, look)
    if scratch:
        import shutil  # slow to import, and only a watcher that was killed needs it

        shutil.rmtree(scratch, ignore_errors=True)


def _serve(control: int, wake: int, pid: int) -> bool:
    """Pass on what happens and what is asked until nothing is left (True) or the watcher is gone (False)."""
    living: int | None = pid
    while True:
        ready, _, _ = select.select([control, wake], [], [])
        if wake in ready:
            os.read(wake, 512)
            ended = _reap(control)
            if ended is None:
                return True
            living = None if living in ended else living
        if control in ready:
            try:
                verb, _, number = os.read(control, 64).partition(b" ")
            except OSError:
                verb = b""
            if not verb:
                return False
            if verb == b"group" and living:
                with contextlib.suppress(OSError):
                    os.killpg(living, int(number))  # not reaped yet, so the number is still its own
            else:
                _signal_all(int(number))


def _reap(control: int) -> set[int] | None:
    """Tell about every child that ended or stopped; return the ended, None when no child is left."""
    ended: set[int] = set()
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            _send(control, "empty")
            return None
        if pid == 0:
            return ended
        if os.WIFSTOPPED(status):
            _send(control, f"stopped {pid} {os.WSTOPSIG(status)}")
        else:
            ended.add(pid)
            _send(control, f"exit {pid} {os.waitstatus_to_exitcode(status)} {usage.ru_maxrss}")


def _end_all(control: int) -> None:
    """End every descendant: SIGTERM, a second of grace, then SIGKILL until nothing is left."""
    end = time.monotonic() + GRACE
    _signal_all(signal.SIGTERM)
    _signal_all(signal.SIGCONT)
    while _reap(control) is not None:
        if time.monotonic() > end:
            _signal_all(signal.SIGKILL)
        time.sleep(0.02)


def _signal_all(number: int) -> None:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    below = list(children.get(os.getpid(), ()))
    for pid in below:  # it grows as the tree is walked
        below += children.get(pid, ())
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _start(command: list[str], pty: bool, watcher: int) -> tuple[int, int]:
    """Fork and execute; return the pid and 0, or the errno for which the command cannot be executed."""
    reading, writing = os.pipe()
    guard = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            _become(pty, guard, watcher)
            os.execvp(command[0], command)
        except OSError as error:
            os.write(writing, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(writing)
    refused = os.read(reading, 16)
    os.close(reading)
    return pid, int(refused or 0)


def _become(pty: bool, guard: int, watcher: int) -> None:
    """Make this fork the program: signals as they were, a group of its own, tied to the life of the guard."""
    _prctl(SET_PDEATHSIG, signal.SIGKILL)
    _prctl(SET_PTRACER, watcher)  # so that py-spy may look, where only ancestors may (Yama); fails elsewhere
    if os.getppid() != guard:
        os._exit(127)
    if pty:  # not a session of its own: in a group whose parent is outside the session Ctrl-Z is ignored, setpgid(2)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.setpgid(0, 0)
        os.tcsetpgrp(_terminal(), os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    else:
        os.setsid()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, programs expect that they do not
        signal.signal(number, signal.SIG_DFL)
    for number in HANDLED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _terminal() -> int:
    return next((stream for stream in (0, 1) if os.isatty(stream)), 2)


def _listen() -> int:
    """Return a descriptor that can be read when a signal came; what was ignored stays ignored, also for the program."""
    reading, writing = os.pipe()
    for descriptor in (reading, writing):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in HANDLED:
        if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGCHLD:
            signal.signal(number, lambda _number, _frame: None)
    return reading


def _prctl(what: int, value: int) -> None:
    ctypes.CDLL(None).prctl(what, ctypes.c_ulong(value), 0, 0, 0)


def _send(control: int, text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(control, text.encode())


if __name__ == "__main__":
    main(sys.argv[1:])
