"""The user's terminal and the one that the program gets in its place: size, keys, job control, and the way back."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import termios
import tty
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODES = re.compile(rb"\x1b\[\?(25|1049|1000|1002|1003|1006|2004)([hl])")  # cursor, other screen, mouse, paste
CURSOR = b"25"
READ = "63" if os.uname().machine in ("aarch64", "riscv64") else "0"  # number of the system call
OFLAG, LFLAG, CC = 1, 3, 6  # of the list that tcgetattr returns


@dataclass
class Terminal:
    """The user's terminal `screen`, and the pair of a new one: we hold `master`, the program works on `slave`.

    With `keyboard` the keys go to the program as they are, so that Ctrl-C and Ctrl-Z are its terminal's business.
    """

    screen: int
    master: int
    slave: int
    keyboard: bool
    look: list[Any]  # how the user's terminal was
    raw: bool = False
    modes: dict[bytes, bytes] = field(default_factory=dict)  # what the program switched on and off

    def enter(self) -> None:
        """Let every key through, if we are in the foreground; the look of the terminal is kept for `leave`."""
        self.resize()
        if self.keyboard and not self.raw and foreground(self.screen):
            with contextlib.suppress(termios.error):
                self.look = termios.tcgetattr(self.screen)
                tty.setraw(self.screen, termios.TCSANOW)
                self.raw = True

    def leave(self) -> None:
        """Give the user's terminal back as it was."""
        if self.raw:
            self.raw = False
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self.screen, termios.TCSANOW, self.look)

    def resize(self) -> None:
        """Give the program's terminal the size of the user's; the kernel sends SIGWINCH by itself."""
        with contextlib.suppress(OSError):
            size = fcntl.ioctl(self.screen, termios.TIOCGWINSZ, bytes(8))
            if struct.unpack("HHHH", size)[:2] != (0, 0):
                fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)

    def note(self, data: bytes) -> None:
        """Remember what the program switches on: a program that is killed does not switch it off."""
        if b"\x1b[?" in data:
            self.modes.update(dict(MODES.findall(data)))

    def undo(self) -> bytes:
        """Return what switches back whatever the program left switched."""
        left = [mode for mode, state in self.modes.items() if state == (b"l" if mode == CURSOR else b"h")]
        return b"".join(b"\x1b[?" + mode + (b"h" if mode == CURSOR else b"l") for mode in left)

    def asking(self, pid: int) -> bool:
        """Return whether a program waits for a key in a line editor (readline, as in `breakpoint()`) or reads stdin."""
        with contextlib.suppress(termios.error):
            if not termios.tcgetattr(self.master)[LFLAG] & termios.ICANON:
                return True
        with contextlib.suppress(OSError, ValueError):  # "running" is one word, and no number
            number, descriptor, *_ = Path(f"/proc/{pid}/syscall").read_text(encoding="ascii").split()
            return number == READ and int(descriptor, 16) == 0
        return False

    def interrupts(self, keys: bytes) -> bool:
        """Return whether the program's terminal makes SIGINT of these keys."""
        with contextlib.suppress(termios.error):
            now = termios.tcgetattr(self.master)
            return bool(now[LFLAG] & termios.ISIG) and now[CC][termios.VINTR] in keys
        return False

    def close_slave(self) -> None:
        """Let go of the program's end, so that the master ends when the last process has let go too."""
        if self.slave >= 0:
            os.close(self.slave)
            self.slave = -1


def open_pair() -> Terminal | None:
    """Return a terminal for the program if stdout or stderr is one; None if neither is or none can be had."""
    screen = next((number for number in (1, 2) if os.isatty(number)), None)
    if screen is None:
        return None
    keyboard = screen == 1 and os.isatty(0)
    try:
        look = termios.tcgetattr(screen)
        master, slave = pty.openpty()
    except (OSError, termios.error):
        return None
    theirs = [*look]
    if not keyboard:  # ours stays as it is and ends the lines itself
        theirs[OFLAG] &= ~termios.OPOST
    with contextlib.suppress(termios.error):
        termios.tcsetattr(slave, termios.TCSANOW, theirs)
    os.set_blocking(master, False)
    terminal = Terminal(screen, master, slave, keyboard, look)
    terminal.resize()
    return terminal


def foreground(screen: int) -> bool:
    """Return whether the terminal listens to us: a background job that changed it would be stopped."""
    try:
        return os.tcgetpgrp(screen) == os.getpgrp()
    except OSError:
        return False
