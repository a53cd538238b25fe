"""The detector that ships with the package: where its file is, and whether that is the file which was packed."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from ocrlab.errors import CheckpointError

NAME = "receipts"  # of the included detector; `--checkpoint receipts` asks for it
FOLDER = Path(__file__).parent


def find() -> Path:
    """Return the included checkpoint after its SHA-256 was compared with the one beside it; raises CheckpointError."""
    path, beside = FOLDER / f"{NAME}.ckpt", FOLDER / f"{NAME}.ckpt.sha256"
    do = "Install ocrlab again, or name a checkpoint of your own with --checkpoint CKPT"
    for file in (path, beside):
        if not file.is_file():
            raise CheckpointError("The included detector is missing", got=f"no {file}", need="a whole install", do=do)
    recorded, digest = beside.read_text(encoding="utf-8").split(maxsplit=1)[:1], sha256(path)
    if recorded != [digest]:
        expected = recorded[0] if recorded else "nothing"
        raise CheckpointError(
            "The included detector is damaged", got=f"{path} of SHA-256 {digest}", need=f"{expected}, as packed", do=do
        )
    return path


def check_file(path: Path) -> None:
    """Raise CheckpointError where a file is not there, or is none of torch's, which are zips; torch is not needed."""
    if not path.is_file():
        need = "a .ckpt file written by ocrlab train"
        raise CheckpointError("There is no checkpoint", got=str(path), need=need, missing=True)
    try:
        with path.open("rb") as file:
            start = file.read(8)
        size = _unpacked_size(path) if zipfile.is_zipfile(path) else None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read", got=error.strerror, need="a file that you may read") from error
    if size is not None:
        if size > path.stat().st_size:  # torch stores its files as they are; packed ones may fill the memory
            got, need = f"{size:,} bytes packed into {path.stat().st_size:,}", "a file as torch.save writes it"
            raise CheckpointError(f"{path} cannot be read as a checkpoint", got=got, need=need)
        return
    content = f"a file that starts with {start!r}" if start else "an empty file"
    content = "a file of torch that is cut off or damaged" if start.startswith(b"PK") else content
    need = "a whole file written by ocrlab train"
    raise CheckpointError(f"{path} cannot be read as a checkpoint", got=content, need=need)


def _unpacked_size(path: Path) -> int | None:
    """Return how many bytes the files in a zip are, None where its directory makes no sense."""
    try:
        with zipfile.ZipFile(path) as file:
            return sum(info.file_size for info in file.infolist())
    except (zipfile.BadZipFile, ValueError, RuntimeError):
        return None


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
