"""Who wrote a file of a run folder: a keyed digest beside it, which only this user on this machine can make.

A run folder may name programs and hold pickles; what executes them asks here first. The key lies in the user's state
folder ($XDG_STATE_HOME, by default ~/.local/state), never in a run folder. Where it cannot be made, as with a read-only
home, files get no digest and count as recorded by others. Standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import socket
import stat
from pathlib import Path
from typing import Any

from ocrlab import safe_read

KEY_BYTES = 32
VERSION = b"ocrlab 1"
PIECE = 1 << 20  # bytes that are read at a time


def sign(path: Path | str) -> None:
    """Write the digest of a file beside it; never raises, and a file without one counts as recorded by others."""
    with contextlib.suppress(Exception):
        digest = _file_digest(path, make_key=True)
        if digest is not None:
            _write(digest_file(path), digest.encode())


def is_own(path: Path | str) -> bool:
    """Return whether this user wrote a file on this machine, as it is now; never raises."""
    try:
        recorded = safe_read.read(digest_file(path), 2 * hashlib.sha256().digest_size, links=False)
        digest = _file_digest(path)
        return digest is not None and hmac.compare_digest(recorded, digest.encode())
    except (OSError, ValueError):
        return False


def digest_file(path: Path | str) -> Path:
    """Return where the digest of a file is."""
    return Path(path).with_name(f".{Path(path).name}.digest")


class SignedFile:
    """A file for torch.save whose digest is made while it is written; `sign` writes that beside the finished file."""

    def __init__(self, file: Any, name: str) -> None:
        self.file, self.flush = file, file.flush
        self.digest = _digest(name, _key(make=True))

    def write(self, data: Any) -> Any:
        """Write bytes."""
        if self.digest is not None:
            self.digest.update(data)
        return self.file.write(data)

    def sign(self, path: Path) -> None:
        """Write the digest beside the file; never raises."""
        if self.digest is not None:
            with contextlib.suppress(OSError):
                _write(digest_file(path), self.digest.hexdigest().encode())


def _file_digest(path: Path | str, *, make_key: bool = False) -> str | None:
    digest = _digest(Path(path).name, _key(make=make_key))
    if digest is None:
        return None
    with safe_read.open_file(path) as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _digest(name: str, key: bytes | None) -> hmac.HMAC | None:
    """Return the digest of a file before its content: of the user, the machine and the file's name."""
    if key is None:
        return None
    who = (VERSION, str(os.geteuid()).encode(), socket.gethostname().encode(), os.fsencode(name))
    return hmac.new(key, b"\0".join((*who, b"")), hashlib.sha256)


def _key(*, make: bool) -> bytes | None:
    """Return the key of this user, None without one; only the user may be able to read it."""
    try:
        wanted = os.environ.get("XDG_STATE_HOME", "")
        state = Path(wanted) if os.path.isabs(wanted) else Path.home() / ".local" / "state"
        path = state / "ocrlab" / "recording.key"
        with contextlib.suppress(FileExistsError):
            if make and not path.exists():
                _make_key(path)
        with safe_read.open_file(path, links=False) as file:
            status, key = os.fstat(file.fileno()), file.read(KEY_BYTES + 1)
    except (OSError, RuntimeError, ValueError):  # no home
        return None
    private = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
    return key if private and len(key) == KEY_BYTES else None


def _make_key(path: Path) -> None:
    """Make the key, whole or not at all; raises OSError, FileExistsError where another process was faster."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        os.link(part, path)
    finally:
        part.unlink(missing_ok=True)


def _write(path: Path, data: bytes) -> None:
    """Write a private file whole or not at all; it need not survive a power cut."""
    part = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
