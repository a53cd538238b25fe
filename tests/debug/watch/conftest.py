"""A terminal with a person at it, and children that are found again by a mark in their environment."""

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MARK = "OCRLAB_TEST_MARK"


class Screen:
    """`ocrlab watch -- command` on a terminal of 33 rows and 111 columns, with what it shows and its exit status."""

    def __init__(self, words: list[str], env: dict[str, str], folder: Path) -> None:
        self.shown = b""
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))
            os.execve(sys.executable, [sys.executable, "-m", "ocrlab", "watch", *words], env)

    def wait_for(self, text: bytes, seconds: float = 30.0, times: int = 1) -> bytes:
        """Return all that is shown once `text` is among it, so many `times`."""
        end = time.monotonic() + seconds
        while self.shown.count(text) < times:
            assert time.monotonic() < end, f"{text!r} never came: {self.shown!r}"
            self._read()
        return self.shown

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def look(self) -> list:
        """Return the settings of the terminal."""
        return termios.tcgetattr(self.master)

    def end(self, seconds: float = 30.0) -> int:
        """Return the exit status when it has ended by itself."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while self._read():
                    pass
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(f"it did not end: {self.shown!r}")

    def ended(self, status: int) -> None:
        """Check the exit status; what is shown says why it is another."""
        assert (self.end(), self.shown) == (status, self.shown)

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.master)

    def _read(self) -> bool:
        ready, _, _ = select.select([self.master], [], [], 0.05)
        with contextlib.suppress(OSError):
            if ready:
                data = os.read(self.master, 65536)
                self.shown += data
                return bool(data)
        return False


@pytest.fixture
def mark(request: pytest.FixtureRequest) -> str:
    """Return a word that the environment of every process of this test has."""
    return f"{os.getpid()}-{request.node.name}"[:80]


@pytest.fixture
def env(mark: str) -> dict[str, str]:
    """Return an environment with that mark in which ocrlab can be imported."""
    drop = ("OCRLAB_WATCH", "OCRLAB_HEARTBEAT", "PYTHONFAULTHANDLER")
    return {**{k: v for k, v in os.environ.items() if k not in drop}, MARK: mark, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def screen(env: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Screen]]:
    """Return a function that starts `ocrlab watch` with some words on a terminal of its own."""
    opened: list[Screen] = []

    def start(*words: str) -> Screen:
        opened.append(Screen(list(words), env, tmp_path))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


@pytest.fixture
def left(mark: str) -> Iterator[Callable[[], list[int]]]:
    """Return a function that lists the living processes of this test; at the end they are killed, and it fails."""
    yield lambda: marked(mark)
    end = time.monotonic() + 5
    while marked(mark) and time.monotonic() < end:
        time.sleep(0.05)
    orphans = marked(mark)
    for pid in orphans:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    assert orphans == []


def marked(mark: str) -> list[int]:
    """Return the processes, zombies left out, whose environment has a mark."""
    pids = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and f"{MARK}={mark}\0".encode() in Path("/proc", name, "environ").read_bytes() + b"\0":
                pids.append(int(name))
    return pids


def watch_line(what: str | list[str], options: tuple[str, ...]) -> list[str]:
    """Return the command that runs Python code, or a command, under `ocrlab watch` in the folder `out`."""
    command = [sys.executable, "-u", "-c", what] if isinstance(what, str) else what
    return [sys.executable, "-m", "ocrlab", "watch", "--run-dir", "out", *options, "--", *command]


@pytest.fixture
def started(env: dict[str, str], tmp_path: Path) -> Callable[..., subprocess.Popen]:
    """Return a function that starts Python code, or a command, under `ocrlab watch` with pipes."""

    def start(what: str | list[str], *options: str, **more) -> subprocess.Popen:
        defaults = {"env": env, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(watch_line(what, options), cwd=tmp_path, **defaults | more)

    return start


@dataclass
class Done:
    """A watched program that has ended: exit status, both outputs, and its run folder."""

    status: int
    out: bytes
    err: str
    folder: Path

    @property
    def verdict(self) -> dict:
        return json.loads((self.folder / "incident" / "verdict.json").read_text())

    @property
    def sentinel(self) -> str:
        (name,) = [path.name for path in self.folder.iterdir() if path.name in (".RUNNING", ".SUCCESS", ".FAILURE")]
        return name


@pytest.fixture
def watched(env: dict[str, str], tmp_path: Path, left: Callable[[], list[int]]) -> Callable[..., Done]:
    """Return a function that runs Python code, or a command, under `ocrlab watch` with pipes, to its end."""

    def run(what: str | list[str], *options: str, stdin: bytes = b"") -> Done:
        words = watch_line(what, options)
        done = subprocess.run(words, input=stdin, capture_output=True, cwd=tmp_path, env=env, timeout=60, check=False)
        return Done(done.returncode, done.stdout, done.stderr.decode(), tmp_path / "out")

    return run
