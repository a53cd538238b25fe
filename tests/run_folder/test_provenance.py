"""The digest beside a file: only the user who wrote it on this machine can make it, and no training fails by it."""

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ocrlab.run_folder import provenance


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "ocrlab"


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    path = tmp_path / "program.json"
    path.write_text("{}", encoding="utf-8")
    provenance.sign(path)
    assert provenance.is_own(path)
    return path


def test_a_changed_file_is_nobodys(signed: Path) -> None:
    signed.write_text("{ }", encoding="utf-8")
    assert not provenance.is_own(signed)
    signed.write_text("{}", encoding="utf-8")
    assert provenance.is_own(signed)
    provenance.digest_file(signed).write_text("0" * 64, encoding="utf-8")
    assert not provenance.is_own(signed)
    provenance.digest_file(signed).unlink()
    assert not provenance.is_own(signed)


def test_another_machine_or_user_is_somebody_else(signed: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: "elsewhere")
        assert not provenance.is_own(signed)
    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(state.parent.parent / "another"))
        assert not provenance.is_own(signed), "no key at all"
        provenance.sign(signed.parent / "nothing")
        assert not provenance.is_own(signed), "another key"


def test_the_key_is_private_and_outside_of_any_run_folder(signed: Path, state: Path) -> None:
    [key] = state.iterdir()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and stat.S_IMODE(state.stat().st_mode) == 0o700
    assert provenance.digest_file(signed).parent == signed.parent
    assert stat.S_IMODE(provenance.digest_file(signed).stat().st_mode) == 0o600
    key.chmod(0o640)
    assert not provenance.is_own(signed), "somebody else may have read it"
    key.unlink()
    os.mkfifo(key, 0o600)
    assert not provenance.is_own(signed)
    provenance.sign(signed)


@pytest.mark.parametrize("home", ["/dev/null", "/proc/1", "/nonexistent/\0", ""])
def test_without_a_place_for_the_key_nothing_is_signed_and_nothing_fails(tmp_path, home, monkeypatch):
    if "\0" not in home:
        monkeypatch.setenv("XDG_STATE_HOME", f"{home}/x" if home else "")
        monkeypatch.setenv("HOME", home or "/proc/nowhere")
    else:
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
        monkeypatch.delenv("XDG_STATE_HOME")
    path = tmp_path / "program.json"
    path.write_text("{}", encoding="utf-8")
    provenance.sign(path)
    provenance.sign(tmp_path / "not there")
    assert not provenance.is_own(path) and not provenance.digest_file(path).exists()
    with (tmp_path / "batch").open("wb") as file:
        written = provenance.SignedFile(file, "batch")
        written.write(b"abc")
    written.sign(tmp_path / "batch")
    assert (tmp_path / "batch").read_bytes() == b"abc" and not provenance.is_own(tmp_path / "batch")


def test_processes_that_begin_together_share_one_key(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from ocrlab.run_folder import provenance\n"
    code += "p = Path(sys.argv[1]); p.write_text(p.name); provenance.sign(p)"
    files = [tmp_path / f"program-{rank}.json" for rank in range(8)]
    children = [subprocess.Popen([sys.executable, "-c", code, str(file)]) for file in files]
    assert [child.wait(60) for child in children] == [0] * 8
    assert all(map(provenance.is_own, files))
