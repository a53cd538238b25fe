"""The kernel of a notebook as a process: its output past the cells, its stacks, all it started, and how it ended.

A kernel swallows what is written to its file descriptors 1 and 2, and the last words with it: the text of a C++
exception, the C library's complaint, faulthandler's stack. Here they go to files, which outlive it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ocrlab.debug.watch.memory_tracker import OomKillCounters
from ocrlab.hardware.processes import kernel_threads

MARK = "OCRLAB_KERNEL"  # an environment variable that every process under the kernel inherits
STACKS = "OCRLAB_STACKS"  # the folder in which `notebook.setup` lets faulthandler write
STREAMS = ("stdout", "stderr")
ANSWER = 0.7  # seconds for a kernel to write its stack after SIGUSR1; it takes milliseconds
PATIENCE = 2.0  # seconds for killed processes to be gone
POLL = 0.02  # seconds
# What faulthandler writes: the fatal error, every thread, and the extension modules at the end.
FATAL = re.compile(
    r"^(?:Fatal Python error: |(?:Current t|T)hread 0x).*?(?:^Extension modules: [^\n]*\n|\Z)", re.M | re.S
)


@dataclass
class Kernel:
    """One kernel seen from outside; `folder` holds its output and stacks and is removed by `close`."""

    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="ocrlab-kernel-")))
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    began: float = field(default_factory=time.monotonic)
    kills: OomKillCounters = field(default_factory=OomKillCounters)  # as they were before it started
    process: Any = None  # its `subprocess.Popen`, where jupyter_client still has one
    pids: set[int] = field(default_factory=set)  # all that ever belonged to it
    fatal: str = ""  # the stack among what it wrote to its stderr
    read: dict[str, int] = field(default_factory=dict)  # bytes of each stream that were handed out
    files: list[IO[bytes]] = field(default_factory=list)

    def launch(self) -> dict[str, Any]:
        """Return how to start it: environment and streams, as keywords of `KernelManager.start_kernel`."""
        self.files = [(self.folder / name).open("ab") for name in STREAMS]
        env = {**os.environ, MARK: self.mark, STACKS: str(self.folder), "PYTHONFAULTHANDLER": "1"}
        return {"env": env, **dict(zip(STREAMS, self.files, strict=True))}

    def adopt(self, manager: Any) -> None:
        """Remember the process of a started kernel; `provisioner.process` is not a public name, and may go away."""
        process = getattr(getattr(manager, "provisioner", None), "process", None)
        self.process = process if callable(getattr(process, "poll", None)) else None
        self.kills.note()
        if self.pid is not None:
            self.kills.note(self.pid)

    @property
    def pid(self) -> int | None:
        """Return the number of its process, None if it is unknown."""
        return getattr(self.process, "pid", None)

    def exit_code(self) -> int | None:
        """Return its exit code (-11 is SIGSEGV), None while it lives or if it is unknown."""
        code = self.process.poll() if self.process is not None else None
        return code if isinstance(code, int) else None

    def gone_within(self, seconds: float) -> bool:
        """Wait for it to leave; returns whether it did."""
        deadline = time.monotonic() + seconds
        while self.exit_code() is None and time.monotonic() < deadline:
            time.sleep(POLL)
        return self.exit_code() is not None

    def take_output(self) -> list[tuple[str, str]]:
        """Return what came past the cells since the last call, as (stdout or stderr, text), without stacks."""
        texts = []
        for name in STREAMS:
            with contextlib.suppress(OSError):
                data = (self.folder / name).read_bytes()
                text = data[self.read.get(name, 0) :].decode("utf-8", errors="replace")
                self.read[name] = len(data)
                if name == "stderr":
                    self.fatal += "".join(match[0] for match in FATAL.finditer(text))
                    text = FATAL.sub("", text)
                texts += [(name, text)] if text.strip() else []
        return texts

    def log(self) -> str:
        """Return everything that it wrote to its stderr."""
        return _text(self.folder / "stderr")

    def stack(self) -> str:
        """Return the stacks that faulthandler wrote, by itself or because `ask` wanted them."""
        texts = [self.fatal, *map(_text, sorted(self.folder.glob("*.txt")))]
        return "\n".join(text for text in texts if text.strip())

    def ask(self) -> None:
        """Ask a living kernel for the stack of every thread; without a handler SIGUSR1 would end it."""
        if self.pid is None or not kernel_threads.catches(self.pid, signal.SIGUSR1):
            return
        before = self.stack()
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGUSR1)
        deadline = time.monotonic() + ANSWER
        while time.monotonic() < deadline and self.stack() == before:
            time.sleep(POLL)

    def family(self) -> list[int]:
        """Return every living process that it started, itself included, whatever session or parent it has now."""
        pids = marked(MARK, self.mark)
        self.pids.update(pids)
        return pids

    def end(self) -> None:
        """Kill it and everything it started."""
        self.family()
        end(MARK, self.mark)

    def close(self) -> None:
        """End what still lives and remove its files."""
        self.end()
        for file in self.files:
            file.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def marked(variable: str, value: str) -> list[int]:
    """Return the living processes, except this one, that were started with an environment variable of this value."""
    needle, pids = f"{variable}={value}".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # gone, or of somebody else
                if needle in (entry / "environ").read_bytes().split(b"\0"):
                    pids.append(int(entry.name))
    return sorted(pids)


def end(variable: str, value: str) -> None:
    """Kill everything that is `marked`; the next round catches a fork made meanwhile."""
    deadline = time.monotonic() + PATIENCE
    while (pids := marked(variable, value)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL)
