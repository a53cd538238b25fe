"""The memory of processes, of a control group and of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ocrlab.hardware import process_memory

KB = 1024


def write_file(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_this_process() -> None:
    use = process_memory.of_process(os.getpid(), "main", "python")
    assert use is not None
    assert use["rss"] > 4 * 2**20
    assert use["pss"] is None or 0 < use["pss"] <= use["rss"]
    assert use["private"] is None or use["private"] <= use["rss"]
    assert use["peak"] is None or use["peak"] >= 0.9 * use["rss"]


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


@pytest.mark.parametrize(
    ("group", "mount", "stat"),
    [
        ("0::/job\n", "sys/fs/cgroup/job", "anon 5\nfile 900\nshmem 100\n"),
        ("4:memory:/job\n", "sys/fs/cgroup/memory/job", "cache 1\nshmem 0\ntotal_cache 900\ntotal_shmem 100\n"),
    ],
)
def test_the_page_cache_of_a_control_group(tmp_path: Path, group: str, mount: str, stat: str) -> None:
    write_file(tmp_path, "proc/self/cgroup", group)
    write_file(tmp_path, f"{mount}/memory.stat", stat)
    write_file(tmp_path, "sys/fs/cgroup/cgroup.controllers", "memory")
    assert process_memory.page_cache(root=tmp_path).value == 800


def test_the_page_cache_of_the_machine_or_of_nothing(tmp_path: Path) -> None:
    assert process_memory.page_cache(root=tmp_path).missing
    write_file(tmp_path, "proc/meminfo", "MemTotal: 1000 kB\nBuffers: 10 kB\nCached: 100 kB\nShmem: 30 kB\n")
    assert process_memory.page_cache(root=tmp_path).value == 80 * KB


def test_shared_memory(tmp_path: Path) -> None:
    assert process_memory.shared_memory(str(tmp_path)).value["total"] > 0
    assert process_memory.shared_memory(str(tmp_path / "none")).missing


def test_the_machine(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  2000 kB\nMemFree: 10 kB\nMemAvailable:  500 kB\n")
    assert process_memory.machine_memory(tmp_path).value == {"total": 2048000, "available": 512000, "used": 1536000}
    assert process_memory.machine_memory(tmp_path / "nowhere").missing


def test_the_largest_come_first() -> None:
    processes = process_memory.largest_processes(5)
    assert [process["rss"] for process in processes] == sorted((process["rss"] for process in processes), reverse=True)
    everyone = process_memory.largest_processes(100_000)
    assert os.getpid() in {process["pid"] for process in everyone}
