"""Limits are tried: files are written, threads are started, connections are made."""

from __future__ import annotations

import resource
import socket
from pathlib import Path

import pytest

from ocrlab.hardware import resource_limits


def test_a_disk_is_written_to_and_left_as_it_was(tmp_path: Path) -> None:
    answer = resource_limits.disk(str(tmp_path / "not" / "made" / "yet"))
    assert answer["folder"] == str(tmp_path)
    assert answer["written"] == resource_limits.WRITTEN
    assert answer["seconds"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses() -> None:
    answer = resource_limits.disk("/proc")
    assert "errno" in answer["error"]


def test_a_file_size_limit_is_an_error_not_a_death(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource_limits.MIB, hard))
    try:
        assert "errno 27" in resource_limits.disk(str(tmp_path))["error"]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_shared_memory_and_what_the_dead_left_there(tmp_path: Path) -> None:
    (tmp_path / "torch_999999999_1_0").touch()
    (tmp_path / "torch_1_1_0").touch()  # process 1 lives
    answer = resource_limits.shared_memory(str(tmp_path))
    assert answer["left"] == ["torch_999999999_1_0"]
    assert answer["written"] > 0
    assert "error" in resource_limits.shared_memory(str(tmp_path / "absent"))


def test_threads_are_started_and_ended() -> None:
    answer = resource_limits.threads()
    assert answer["started"] == answer["wanted"] == resource_limits.THREADS


def test_memory_of_a_machine(tmp_path: Path) -> None:
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 400 kB\nHugePages_Total: 0\n")
    (tmp_path / "proc/sys/vm/overcommit_memory").write_text("2\n")
    answer = resource_limits.memory(str(tmp_path))
    assert (answer["total"], answer["available"], answer["overcommit"]) == (1000 * 1024, 400 * 1024, "2")
    assert answer["used_of_group"] is None


def test_memory_of_a_container(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    for name, text in (
        ("cgroup.controllers", "memory"),
        ("memory.max", "5000"),
        ("memory.current", "3000"),
        ("memory.stat", "anon 1\ninactive_file 700"),
    ):
        (tmp_path / "sys/fs/cgroup" / name).write_text(f"{text}\n")
    answer = resource_limits.memory(str(tmp_path))
    assert (answer["limit"], answer["used_of_group"], answer["inactive"]) == (5000, 3000, 700)


def test_the_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert "error" not in resource_limits.network("127.0.0.1", port, 5.0)
    assert "error" in resource_limits.network("127.0.0.1", port, 5.0)


def test_what_the_loader_finds_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libcudnn.so.8").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:/nowhere")
    monkeypatch.setenv("LD_PRELOAD", "")
    assert resource_limits.library_path() == {"offers": [str(tmp_path / "libcudnn.so.8")], "preload": []}
