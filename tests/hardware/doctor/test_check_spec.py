"""Bytes and versions in words and numbers, and what counts as an interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ocrlab.errors import ConfigError
from ocrlab.hardware.doctor.check_spec import interpreter, size, version


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (64 << 20, "64 MiB"), (3 << 50, "3072 TiB")],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("580.65.06", (580, 65, 6)), ("2.8.0+cu128", (2, 8, 0)), ("2.9.0a0", (2, 9, 0)), ("", ()), ("main", ())],
)
def test_versions(text: str, numbers: tuple[int, ...]) -> None:
    assert version(text) == numbers


def test_an_interpreter_by_path_or_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert interpreter(sys.executable) == sys.executable
    link = tmp_path / "bin" / "python"
    link.parent.mkdir()
    link.symlink_to(sys.executable)
    assert interpreter(str(link)) == str(link)  # a venv is a link: following it would leave the venv
    monkeypatch.setenv("PATH", str(link.parent))
    assert interpreter("python") == str(link)
    with pytest.raises(ConfigError, match=r"Give the program, .*bin/python"):
        interpreter(str(tmp_path))
    with pytest.raises(ConfigError, match="is not a program"):
        interpreter(str(tmp_path / "absent"))


def test_another_program_is_no_python() -> None:
    with pytest.raises(ConfigError, match="is not a Python"):
        interpreter("/bin/ls")
