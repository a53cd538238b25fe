"""The host probes on made-up machines: containers, threads of one core, WSL2, files that are not there."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from ocrlab.hardware import host, resource_limits


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


@pytest.mark.parametrize(("files", "expected"), [
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
])  # fmt: skip
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


@pytest.mark.parametrize(("files", "expected"), [
    ({}, 16 * 2**30),
    (GROUP2 | {"sys/fs/cgroup/pod/memory.max": "max"}, 16 * 2**30),
    (GROUP2 | {"sys/fs/cgroup/pod/memory.max": str(2**31)}, 2**31),
    (GROUP1 | {"sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes": str(2**32)}, 2**32),
    (GROUP1 | {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, 16 * 2**30),
])  # fmt: skip
def test_memory_goes_by_the_smallest_limit(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    root = machine(tmp_path, {"proc/meminfo": f"MemTotal:       {16 * 2**20} kB\nMemFree: 1 kB\n", **files})
    assert host.memory_bytes(root).value == expected


def test_disk_of_a_working_folder_that_is_gone_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "No such file" in str(host.disk_free("").missing)


def test_environment_is_json_and_names_no_person_and_no_folder() -> None:
    text = json.dumps(host.environment())
    assert json.loads(text)["packages"]["numpy"]
    assert str(Path.home()) + "/" not in text
    assert str(Path(host.__file__).parents[2]) not in text


def test_a_damaged_package_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(tmp_path, {"Good_One-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: Good_One\nVersion: 1.0\n"})
    (tmp_path / "damaged-2.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert host.packages()["good-one"] == "1.0" and "damaged" not in host.packages()


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


def wsl_machine(root: Path, release: str) -> Path:
    """Make the files of a Linux with such a kernel."""
    (root / "proc/sys/kernel").mkdir(parents=True)
    (root / "proc/sys/kernel/osrelease").write_text(f"{release}\n")
    (root / "proc/meminfo").write_text("MemTotal:  16384000 kB\nSwapTotal:  4096000 kB\n")
    return root


def test_plain_linux_and_wsl1(tmp_path: Path) -> None:
    assert resource_limits.wsl(str(wsl_machine(tmp_path / "a", "6.8.0-45-generic"))) == {"wsl": 0}
    assert resource_limits.wsl(str(wsl_machine(tmp_path / "b", "4.4.0-19041-Microsoft")))["wsl"] == 1
    assert resource_limits.wsl(str(tmp_path / "empty")) == {"wsl": 0}


def test_wsl2(tmp_path: Path) -> None:
    root = wsl_machine(tmp_path, "5.15.153.1-microsoft-standard-WSL2")
    (root / "dev").mkdir()
    (root / "dev/dxg").touch()
    (root / "usr/lib/wsl/lib").mkdir(parents=True)
    (root / "usr/lib/wsl/lib/libcuda.so.1").touch()
    answer = resource_limits.wsl(str(root))
    assert (answer["wsl"], answer["dxg"]) == (2, True)
    assert answer["release"] == "5.15.153.1-microsoft-standard-WSL2"
    assert (answer["memory"], answer["swap"]) == (16384000 * 1024, 4096000 * 1024)
    assert [Path(place).name for place in answer["libcuda"]] == ["libcuda.so.1"]
    assert answer["foreign"] == []
