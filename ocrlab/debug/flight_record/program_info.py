"""How a training was started, as `flight/program.json`, so that a replay can start it again."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from ocrlab import safe_read
from ocrlab.errors import DataError, OcrlabError, RunError
from ocrlab.records import SCHEMA, from_json
from ocrlab.run_folder import owner_process, provenance
from ocrlab.run_folder.atomic_files import write_json
from ocrlab.run_folder.watcher_link import REPLAY

NAME = "program.json"
SECRET = ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH", "COOKIE", "PRIVATE", "DSN", "SESSION")
SHELL = ("_", "SHLVL", "OLDPWD", "PWD", "TERM", "COLUMNS", "LINES", "PS1", "PS4", "LS_COLORS")
OURS = ("OCRLAB_REPLAY", "OCRLAB_WATCH", "OCRLAB_HEARTBEAT")  # of this start only
LONGEST = 8192  # characters of one variable
try:
    HERE = os.getcwd()  # when the recorder was imported
except OSError:  # it is gone
    HERE = os.sep


def write(folder: Path | str, kind: str, *, rank: int = 0, **more: Any) -> None:
    """Write program.json into a flight folder: `kind` is "ocrlab train", "lightning" or "loop"; raises OSError.

    A program may be set by any variable; what looks like a key, a token or a password is left out.
    """
    variables = {
        name: value for name, value in os.environ.items() if name not in SHELL + OURS and len(value) <= LONGEST
    }
    content = {
        "schema": SCHEMA,
        "kind": kind,
        "argv": command_line(),
        "executable": sys.executable,
        "cwd": start_folder(),
        "host": socket.gethostname(),
        "environment": {name: value for name, value in variables.items() if not is_secret(name, value)},
        "interactive": "ipykernel" in sys.modules or hasattr(sys, "ps1"),
        "pid": os.getpid(),
        "process": owner_process.identity(),
        "rank": rank,
        "world": world_size(),
        "started": process_path(),
        "time": time.time(),
        **more,
    }
    path = Path(folder, file_name(rank))
    write_json(path, content, private=True)
    provenance.sign(path)


def update(folder: Path | str, rank: int, **more: Any) -> None:
    """Add to what was written of this rank's program what is known later; raises OSError, DataError, RunError."""
    path = Path(folder, file_name(rank))
    own = provenance.is_own(path)
    write_json(path, {**read(folder, rank), **more}, private=True)
    if own:
        provenance.sign(path)


def other_process(folder: Path | str, rank: int) -> int | None:
    """Return the number of another process of this machine that records this rank into a flight folder now."""
    with contextlib.suppress(OcrlabError):
        process = read(folder, rank).get("process")
        if isinstance(process, dict) and process.get("host") == socket.gethostname() and owner_process.alive(process):
            return process["pid"] if process["pid"] != os.getpid() else None
    return None


def file_name(rank: int) -> str:
    """Return the name of the file of a rank's program."""
    return NAME if rank == 0 else f"program-{rank}.json"


def process_path() -> list[int]:
    """Return which process of its program this is, in the order in which that has started them; [] for its first."""
    return list(getattr(multiprocessing.current_process(), "_identity", ()))


def world_size() -> int:
    """Return how many processes there are in the group of this one, 1 without any."""
    group: Any = sys.modules.get("torch.distributed")
    return int(group.get_world_size()) if group and group.is_available() and group.is_initialized() else 1


def command_line() -> list[str]:
    """Return the command line of this program; in a process that multiprocessing has spawned, that of the program."""
    own = list(getattr(sys, "orig_argv", [])) or [sys.executable, *sys.argv]
    words, process = own, multiprocessing.parent_process()
    pid = None if process is None else process.pid
    with contextlib.suppress(OSError, ValueError, IndexError):
        while pid and _is_started(words):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="surrogateescape").split("\0")[:-1]
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            pid = int(stat.rpartition(")")[2].split()[1])
    return own if _is_started(words) else words


def _is_started(words: list[str]) -> bool:
    return any(word == "--multiprocessing-fork" or word.startswith("from multiprocessing.") for word in words)


def start_folder() -> str:
    """Return the folder that this program was started in, which it may have left since; raises OSError.

    Its script is found there by the words of its start: it is that of the import, that of the shell, or the one of now.
    """
    now, main = os.getcwd(), getattr(sys.modules.get("__main__"), "__file__", None)
    words = command_line()[1:]
    script = next((word for word in words if main and os.path.basename(word) == os.path.basename(main)), None)
    if script is None:
        return HERE if Path(HERE).is_dir() else now
    folders = (here for here in (HERE, os.environ.get("PWD", now), now) if _same(Path(here, script), Path(str(main))))
    return next(folders, now)


def _same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False


def find(run: Path | str, rank: int = 0) -> Path:
    """Return where the program of a run folder (or of its flight/) is recorded."""
    return (Path(run, "flight") if Path(run, "flight").is_dir() else Path(run)) / file_name(rank)


def read(run: Path | str, rank: int = 0) -> dict[str, Any]:
    """Return the program of a run folder (or of its flight/); raises RunError where there is none, DataError."""
    path = find(run, rank)
    try:
        return from_json(safe_read.read(path), source=str(path))
    except FileNotFoundError:
        need = "a run of ocrlab train, or of a program with ocrlab.record or ocrlab.Recorder"
        raise RunError(f"{run} has no record of how it was started", need=need) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read", got=str(error)) from error


def job() -> dict[str, Any] | None:
    """Return the job of a replay where this process is one, None where it is not; raises DataError, OSError."""
    path = os.environ.get(REPLAY)
    return from_json(safe_read.read(Path(path)), source=path) if path else None


def is_secret(name: str, value: str = "") -> bool:
    """Return whether a variable may hold a key or a password, by its name or as a URL with one in it."""
    if any(word in name.upper() for word in SECRET):
        return True
    host = value.partition("://")[2].partition("/")[0]
    return "@" in host
