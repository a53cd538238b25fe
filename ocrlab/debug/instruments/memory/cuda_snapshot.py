"""The memory snapshot of CUDA's allocator: written by torch in its own format, read by us without running a pickle.

The file opens in the ecosystem's viewer (pytorch.org/memory_viz). It is a pickle of dicts, lists, texts and numbers; a
reader that allows anything else would run whatever a stranger put into it.
"""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch

from ocrlab.debug.instruments.memory.memory_text import size
from ocrlab.errors import ConfigError, DataError

ENTRIES = 100_000  # of the history, oldest dropped
LARGEST = 2 << 30  # bytes of a file that is read


@contextlib.contextmanager
def recorded(path: Path | str) -> Iterator[None]:
    """Record every allocation of CUDA inside, with stacks, and write the snapshot when it ends, also by an error.

    Raises ConfigError where CUDA is not in use.
    """
    _needs_cuda()
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=ENTRIES)
    try:
        yield
    finally:
        try:
            snapshot(path)
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)


def snapshot(path: Path | str) -> Path:
    """Write what CUDA's allocator holds now to `path`, in torch's own format; raises ConfigError without CUDA."""
    _needs_cuda()
    torch.cuda.memory._dump_snapshot(str(path))
    return Path(path)


def _needs_cuda() -> None:
    if not torch.cuda.is_initialized():
        do = "Use memory.watch, which follows tensors on any device"
        raise ConfigError("A snapshot is one of CUDA's allocator", got="a process without CUDA", do=do)


class _Plain(pickle.Unpickler):
    """An unpickler for which there are no classes and no functions: plain data or nothing."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise DataError("It is no plain memory snapshot", got=f"a pickle that wants {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise DataError("It is no plain memory snapshot", got="a pickle with references to elsewhere")


def read_snapshot(path: Path | str) -> dict[str, Any]:
    """Return a snapshot as segments by device, in bytes, and the largest of what was in use with its lines.

    {"devices": {0: {"allocated", "reserved", "split", "largest_free", "segments"}}, "largest": [{"bytes", "device",
    "line", "stack"}], "events": {action: count}}. Raises DataError for what is no snapshot; nothing in it is executed.
    """
    path = Path(path)
    try:
        if path.stat().st_size > LARGEST:
            raise DataError(f"{path} is too large", got=size(path.stat().st_size), need=f"at most {size(LARGEST)}")
        content = _Plain(io.BytesIO(path.read_bytes())).load()
    except DataError:
        raise
    except OSError as error:
        gone = isinstance(error, FileNotFoundError)
        raise DataError(f"{path} cannot be read", got=error.strerror, missing=gone) from error
    except Exception as error:  # a broken pickle may raise anything
        raise DataError(f"{path} is no memory snapshot", got=f"{type(error).__name__}: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("segments"), list):
        raise DataError(f"{path} is no memory snapshot", need="what torch.cuda.memory._dump_snapshot writes")
    try:
        return _summarise(content)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"{path} is a snapshot of an unknown kind", got=f"{type(error).__name__}: {error}") from error


def _summarise(content: dict[str, Any]) -> dict[str, Any]:
    devices: dict[int, dict[str, int]] = {}
    used: list[dict[str, Any]] = []
    for segment in content["segments"]:
        mine = devices.setdefault(
            segment["device"], {"allocated": 0, "reserved": 0, "split": 0, "largest_free": 0, "segments": 0}
        )
        mine["segments"] += 1
        mine["reserved"] += segment["total_size"]
        busy = any(block["state"] != "inactive" for block in segment["blocks"])
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                mine["largest_free"] = max(mine["largest_free"], block["size"])
                mine["split"] += block["size"] if busy else 0
            else:
                mine["allocated"] += block["size"]
                stack = _lines(block)
                line = _user_line(stack)
                used.append({"bytes": block["size"], "device": segment["device"], "line": line, "stack": stack})
    events: dict[str, int] = {}
    for trace in content.get("device_traces") or []:
        for entry in trace:
            events[entry["action"]] = events.get(entry["action"], 0) + 1
    return {"devices": devices, "largest": sorted(used, key=lambda u: -u["bytes"])[:20], "events": events}


def _lines(block: dict[str, Any]) -> list[str]:
    """Return the Python frames of a block, innermost first; older files keep them in its history."""
    frames: list[dict[str, Any]] = block.get("frames") or next(
        (h.get("frames") for h in block.get("history") or [] if h.get("frames")), []
    )
    return [f"{f['filename']}:{f['line']} {f['name']}" for f in frames or [] if str(f["filename"]).endswith(".py")]


def _user_line(stack: list[str]) -> str:
    """Return the innermost line that is no library's."""
    own = [line for line in stack if "site-packages" not in line and "dist-packages" not in line]
    return (own or stack or [""])[0]
