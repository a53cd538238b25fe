"""The host probes on made-up machines: containers of both kinds, threads of one core, files that are not there."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from ocrlab.hardware import host


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


GROUP2 = {"proc/self/cgroup": "0::/pod/box\n", "sys/fs/cgroup/cgroup.controllers": "cpu memory\n"}
GROUP1 = {"proc/self/cgroup": "5:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n1:name=systemd:/x\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        (GROUP2 | {"sys/fs/cgroup/pod/box/cpu.max": "max 100000"}, 8),
        (GROUP2 | {"sys/fs/cgroup/pod/box/cpu.max": "350000 100000"}, 3),
        (GROUP2 | {"sys/fs/cgroup/pod/box/cpu.max": "50000 100000"}, 1),
        (GROUP2 | {"sys/fs/cgroup/pod/cpu.max": "200000 100000", "sys/fs/cgroup/pod/box/cpu.max": "max 100000"}, 2),
        (GROUP2 | {"sys/fs/cgroup/cpu.max": "1600000 100000"}, 8),
        (GROUP2 | {"sys/fs/cgroup/cpu.max": "rubbish"}, 8),
        (GROUP1 | {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 8),
        (GROUP1 | {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 4),
        (GROUP1 | {"sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu.cfs_quota_us": "200000"}, 2),
    ],
)
@pytest.mark.usefixtures("eight")
def test_cores_go_by_the_smallest_quota(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert host.cores(machine(tmp_path, files)) == expected


@pytest.mark.usefixtures("eight")
def test_two_threads_of_a_core_count_once_and_sockets_apart(tmp_path: Path) -> None:
    files: dict[str, str] = {}
    for cpu in range(8):
        place = f"sys/devices/system/cpu/cpu{cpu}/topology"
        files |= {f"{place}/physical_package_id": str(cpu // 4), f"{place}/core_id": str(cpu % 2)}
    assert host.physical_cores(machine(tmp_path, files)) == 4
    machine(tmp_path, GROUP2 | {"sys/fs/cgroup/cpu.max": "300000 100000"})
    assert host.physical_cores(tmp_path) == 3


@pytest.mark.usefixtures("eight")
def test_without_a_topology_every_core_counts(tmp_path: Path) -> None:
    assert host.physical_cores(tmp_path) == 8


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 16 * 2**30),
        (GROUP2 | {"sys/fs/cgroup/pod/memory.max": "max"}, 16 * 2**30),
        (GROUP2 | {"sys/fs/cgroup/pod/memory.max": str(2**31)}, 2**31),
        (GROUP1 | {"sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes": str(2**32)}, 2**32),
        (GROUP1 | {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, 16 * 2**30),
    ],
)
def test_memory_goes_by_the_smallest_limit(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    root = machine(tmp_path, {"proc/meminfo": f"MemTotal:       {16 * 2**20} kB\nMemFree: 1 kB\n", **files})
    assert host.memory_bytes(root).value == expected


def test_cpu(tmp_path: Path) -> None:
    text = (
        "processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nflags\t\t: fpu avx2 amx_bf16\n\nprocessor\t: 1\nflags\t: other\n"
    )
    root = machine(tmp_path, {"proc/cpuinfo": text})
    assert host.cpu_name(root).value == "A CPU @ 2 GHz"
    assert host.cpu_flags(root) == {"fpu", "avx2", "amx_bf16"}


def test_what_is_not_there_is_a_reason_and_no_error(tmp_path: Path) -> None:
    for reading in (host.memory_bytes(tmp_path), host.cpu_name(tmp_path), host.shm_bytes(tmp_path)):
        assert reading.value is None
        assert reading.missing
    assert host.cpu_flags(tmp_path) == set()


def test_disk_of_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert host.disk_free(tmp_path / "a" / "b").value > 0


def test_disk_of_a_working_folder_that_is_gone_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "No such file" in str(host.disk_free("").missing)


def test_this_machine() -> None:
    assert 1 <= host.physical_cores() <= host.cores() <= (os.cpu_count() or 1)
    assert host.memory_bytes().value > 2**28
    assert host.shm_bytes().value > 0


def test_environment_is_json_and_names_no_person_and_no_folder() -> None:
    text = json.dumps(host.environment())
    assert json.loads(text)["packages"]["numpy"]
    assert str(Path.home()) + "/" not in text
    assert str(Path(host.__file__).parents[2]) not in text


def test_a_damaged_package_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path, {"Good_One-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: Good_One\nVersion: 1.0\n"})
    (tmp_path / "damaged-2.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    versions = host.packages()
    assert versions["good-one"] == "1.0"
    assert "damaged" not in versions


def test_revision_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    try:
        subprocess.run([*git, "init", "-q"], check=True)
    except OSError:
        pytest.skip("git is not installed")
    (tmp_path / "file").write_text("1")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "-c", "commit.gpgsign=false", "commit", "-qm", "one"], check=True)
    monkeypatch.setattr(host, "__file__", str(tmp_path / "ocrlab" / "probes" / "host.py"))
    clean = host.revision().value
    assert len(clean) == 12
    (tmp_path / "file").write_text("2")
    assert host.revision().value == f"{clean}-dirty"
