"""Files of a stranger's run: links, pipes and huge ones are refused, and nothing waits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ocrlab.reports.run_history import safe_read


def test_a_file_and_its_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_bytes(b"0123456789")
    assert safe_read.read(str(path)) == b"0123456789"
    assert safe_read.ends(str(path), 3) == (b"012", b"789")
    assert safe_read.ends(str(path), 30) == (b"0123456789", b"0123456789")


@pytest.mark.parametrize("look", [safe_read.read, lambda path: safe_read.ends(path, 10)], ids=["read", "ends"])
def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path, look: object) -> None:
    assert callable(look)
    secret = tmp_path / "secret"
    secret.write_text("a", encoding="utf-8")
    (tmp_path / "link").symlink_to(secret)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "pipe", "folder", "missing"):
        with pytest.raises(OSError, match="regular file|symbolic links|No such file"):
            look(str(tmp_path / name))


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="too large"):
        safe_read.read(str(path))
    assert safe_read.ends(str(path), 3) == (b"\0\0\0", b"\0\0\0")
