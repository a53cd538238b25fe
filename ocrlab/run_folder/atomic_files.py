"""Files that are whole or not there: atomic text, bytes and JSON, and a table that grows; standard library only."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ocrlab import safe_read
from ocrlab.errors import DataError
from ocrlab.records import finite, from_json


def write_json(path: Path | str, value: Any, *, private: bool = False) -> None:
    """Write a value as JSON; NaN and infinities become null, unknown values their text; raises OSError."""
    text = json.dumps(finite(value), indent=2, allow_nan=False, default=str, ensure_ascii=False)
    write_text(path, text + "\n", private=private)


def read_json(path: Path) -> dict[str, Any]:
    """Return a record that `write_json` wrote; empty where it is not there, cannot be read, or is newer than ocrlab."""
    with contextlib.suppress(OSError, DataError, ValueError):
        return from_json(safe_read.read(path), source=str(path))
    return {}


def write_text(path: Path | str, text: str, *, private: bool = False) -> None:
    """Write UTF-8 text, whole or not at all; raises OSError."""
    write_bytes(path, text.encode("utf-8", errors="backslashreplace"), private=private)


def write_bytes(path: Path | str, data: bytes | memoryview, *, private: bool = False) -> None:
    """Write a file whole or not at all: temporary name, sync, rename, sync of the folder; raises OSError.

    A private file is readable by its owner only, from its first byte on. A device or pipe (/dev/null) is written to and
    not replaced.
    """
    path = Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(data)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None  # nobody knows the temporary name
        raise
    with contextlib.suppress(OSError):  # 9p under WSL cannot sync a folder; elsewhere the rename survives a power cut
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class Table:
    """A CSV file such as `metrics.csv`, one row a call; a new column rewrites the file once, atomically.

    A row that a crash has torn is dropped when the file is opened again.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.columns, rows, torn = self._read()
        if torn:
            self._rewrite(rows)

    def write(self, row: Mapping[str, object]) -> None:
        """Append one row, handed to the operating system on return; raises OSError."""
        new = [column for column in row if column not in self.columns]
        if new:
            _, rows, _ = self._read()
            self.columns += new
            self._rewrite(rows)
        with self.path.open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self.columns, restval="", lineterminator="\n").writerow(row)

    def rewind(self, step: float) -> None:
        """Drop the rows after `step`: a run that is resumed from there writes them again; raises OSError."""
        columns, rows, _ = self._read()
        if columns:
            self._rewrite([row for row in rows if not row.get("step") or float(row["step"]) <= step])

    def _read(self) -> tuple[list[str], list[dict[str, str]], bool]:
        try:
            with safe_read.open_table(self.path) as file:
                text = file.read()
        except FileNotFoundError:
            return [], [], False
        whole = text[: text.rfind("\n") + 1]
        reader = csv.DictReader(io.StringIO(whole, newline=""), restval="")
        rows = list(reader)
        return list(reader.fieldnames or ()), rows, whole != text

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, restval="", extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.path, text.getvalue())
