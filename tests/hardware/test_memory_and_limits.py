"""The memory of processes and groups, and limits that are tried: files written, threads started."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ocrlab.hardware import process_memory, resource_limits

KB = 1024


def write_file(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_process_that_is_gone_or_has_no_rollup(tmp_path: Path) -> None:
    assert process_memory.of_process(2**22 + 1) is None
    write_file(tmp_path, "proc/7/status", "Name:\tpython\nVmHWM:\t  200 kB\nVmRSS:\t  100 kB\n")
    use = process_memory.of_process(7, root=tmp_path)  # an old kernel, or another user's process: no smaps_rollup
    assert use is not None and (use["rss"], use["peak"], use["pss"], use["private"]) == (100 * KB, 200 * KB, None, None)
    write_file(tmp_path, "proc/8/status", "Name:\tpython\nState:\tZ (zombie)\n")
    assert process_memory.of_process(8, root=tmp_path) is None


def test_a_tree_with_a_child() -> None:
    code = "import sys; data = b'x' * 30_000_000; print(len(data), flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        memory = process_memory.process(os.getpid())
        child.stdin.close()  # type: ignore[union-attr]
    mine = next(use for use in memory["processes"] if use["pid"] == child.pid)
    assert mine["rss"] > 30_000_000
    assert memory["rss"] >= mine["rss"] + 4 * 2**20
    assert memory["processes"][0]["pid"] == os.getpid()
    assert process_memory.process(2**22 + 1)["processes"] == []


@pytest.mark.parametrize(("group", "mount", "stat"), [
    ("0::/job\n", "sys/fs/cgroup/job", "anon 5\nfile 900\nshmem 100\n"),
    ("4:memory:/job\n", "sys/fs/cgroup/memory/job", "cache 1\nshmem 0\ntotal_cache 900\ntotal_shmem 100\n"),
])  # fmt: skip
def test_the_page_cache_of_a_control_group(tmp_path: Path, group: str, mount: str, stat: str) -> None:
    write_file(tmp_path, "proc/self/cgroup", group)
    write_file(tmp_path, f"{mount}/memory.stat", stat)
    write_file(tmp_path, "sys/fs/cgroup/cgroup.controllers", "memory")
    assert process_memory.page_cache(root=tmp_path).value == 800


def test_a_disk_is_written_to_and_left_as_it_was(tmp_path: Path) -> None:
    answer = resource_limits.disk(str(tmp_path / "not" / "made" / "yet"))
    assert answer["folder"] == str(tmp_path)
    assert answer["written"] == resource_limits.WRITTEN
    assert answer["seconds"] > 0
    assert list(tmp_path.iterdir()) == []


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
