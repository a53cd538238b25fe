"""Files that may be a stranger's: pipes, devices, sockets and huge ones are refused, and nothing waits."""

import os
import socket
import subprocess
import sys

import pytest

from ocrlab import safe_read


def test_a_file_and_its_ends_are_read(tmp_path) -> None:
    path = tmp_path / "table"
    path.write_bytes(b"0123456789")
    assert safe_read.read(str(path)) == b"0123456789"
    assert safe_read.ends(str(path), 3) == (b"012", b"789")
    assert safe_read.ends(str(path), 30) == (b"0123456789", b"0123456789")


LOOKS = {"open": safe_read.open_file, "read": safe_read.read, "ends": lambda path: safe_read.ends(path, 10)}


@pytest.mark.parametrize("look", LOOKS)
def test_what_is_no_plain_file_is_refused_at_once(tmp_path, look: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for name, says in {"pipe": "a pipe", "folder": "directory", "missing": "No such", "socket": "a socket"}.items():
            with pytest.raises(OSError, match=says) as caught:
                LOOKS[look](str(tmp_path / name))
            assert caught.value.filename == str(tmp_path / name)
    with pytest.raises(OSError, match="a device"):
        LOOKS[look]("/dev/zero")


def test_a_link_is_refused_where_it_might_show_another_file(tmp_path) -> None:
    (tmp_path / "secret").write_text("a", encoding="utf-8")
    (tmp_path / "link").symlink_to("secret")
    (tmp_path / "device.jpg").symlink_to("/dev/zero")
    assert safe_read.read(tmp_path / "link") == b"a"
    for look in (safe_read.read_small, LOOKS["ends"]):
        with pytest.raises(OSError, match="a link"):
            look(str(tmp_path / "link"))
    with pytest.raises(OSError, match="a device"):
        safe_read.read(tmp_path / "device.jpg")


def test_the_pipe_of_a_shell_is_read_where_a_log_is_expected(tmp_path) -> None:
    command = ["bash", "-c", f"{sys.executable} -m ocrlab diagnose <(echo 'ValueError: x'; sleep 0.2; echo end)"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr and "cannot be read" not in done.stderr


def test_what_leads_out_of_a_folder(tmp_path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "database").touch()
    (tmp_path / "data" / "link").symlink_to("../database")
    (tmp_path / "data" / "inner").symlink_to("page")
    assert safe_read.leads_out(tmp_path / "data" / "link", tmp_path / "data")
    assert not safe_read.leads_out(tmp_path / "data" / "inner", tmp_path / "data")
    assert not safe_read.leads_out(tmp_path / "data" / "link", tmp_path / "data", tmp_path)


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="too large"):
        safe_read.read_small(str(path))
    assert safe_read.ends(str(path), 3) == (b"\0\0\0", b"\0\0\0")
