"""Control groups of both versions, made up and, where this machine allows it, with a process that is really killed."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ocrlab.hardware import cgroup
from ocrlab.hardware.processes import kernel_log

GROUP2 = {"proc/self/cgroup": "0::/pod/box\n", "sys/fs/cgroup/cgroup.controllers": "memory pids\n"}
GROUP1 = {"proc/self/cgroup": "5:memory:/docker/ab\n4:pids:/docker/ab\n1:name=systemd:/x\n0::/\n"}
BOX2, BOX1 = "sys/fs/cgroup/pod/box", "sys/fs/cgroup/memory/docker/ab"
EVENTS = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(("files", "kills"), [
    (GROUP2 | {f"{BOX2}/memory.events": EVENTS}, 2),
    (GROUP2 | {"sys/fs/cgroup/pod/memory.events": EVENTS, f"{BOX2}/memory.events": "oom 0\noom_kill 0\n"}, 0),
    (GROUP1 | {f"{BOX1}/memory.oom_control": CONTROL}, 1),
    (GROUP1 | {"sys/fs/cgroup/memory/memory.oom_control": CONTROL}, 1),  # a container does not see /docker/ab
    (GROUP1 | {f"{BOX1}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n"}, None),  # before Linux 4.13
    (GROUP2 | {"sys/fs/cgroup/pod/procs": ""}, None),
    ({}, None),
])  # fmt: skip
def test_kills_are_counted_in_the_own_group(tmp_path: Path, files: dict[str, str], kills: int | None) -> None:
    reading = cgroup.oom_kills(root=machine(tmp_path, files))
    assert reading.value == kills
    assert bool(reading.missing) is (kills is None)


@pytest.mark.parametrize(("files", "limit", "pids"), [
    (GROUP2 | {f"{BOX2}/memory.max": "max", f"{BOX2}/pids.max": "max"}, None, None),
    (GROUP2 | {f"{BOX2}/memory.max": "900", "sys/fs/cgroup/pod/memory.max": "500"}, 500, None),
    (
        GROUP1
        | {
            f"{BOX1}/memory.limit_in_bytes": "4096",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/pids/docker/ab/pids.max": "100",
        },
        4096,
        100,
    ),
    ({}, None, None),
])  # fmt: skip
def test_limits(tmp_path: Path, files: dict[str, str], limit: int | None, pids: int | None) -> None:
    root = machine(tmp_path, files)
    readings = (cgroup.memory_limit(root=root), cgroup.pids_limit(root=root))
    assert [reading.value for reading in readings] == [limit, pids]
    assert all(reading.missing for reading in readings if reading.value is None)


@pytest.mark.parametrize(("files", "left", "file"), [
    # the limit lies above, where a neighbour holds 500: what this process's own group uses says nothing of it
    (
        {
            f"{BOX2}/memory.max": "max",
            f"{BOX2}/memory.current": "100",
            "sys/fs/cgroup/pod/memory.max": "900",
            "sys/fs/cgroup/pod/memory.current": "600",
            "sys/fs/cgroup/pod/memory.stat": "anon 510\ninactive_file 60\nactive_file 30\nshmem 30\n",
        },
        390,
        "memory.max",
    ),
    # the group above has the wider limit and leaves less
    (
        {
            f"{BOX2}/memory.max": "800",
            f"{BOX2}/memory.current": "790",
            "sys/fs/cgroup/pod/memory.max": "900",
            "sys/fs/cgroup/pod/memory.current": "895",
        },
        5,
        "memory.max",
    ),
    (
        {f"{BOX2}/memory.max": "900", f"{BOX2}/memory.high": "700", f"{BOX2}/memory.current": "50"},
        650,
        "memory.high",
    ),
    ({f"{BOX2}/memory.max": "max", f"{BOX2}/memory.high": "max", f"{BOX2}/memory.current": "50"}, None, None),
    ({f"{BOX2}/memory.max": "90", f"{BOX2}/memory.current": "99"}, 0, "memory.max"),
])  # fmt: skip
def test_what_groups_leave(tmp_path: Path, files: dict[str, str], left: int | None, file: str | None) -> None:
    reading = cgroup.memory_left(root=machine(tmp_path, GROUP2 | files))
    value = reading.value or {}
    assert (value.get("left"), value.get("file")) == (left, file)
    assert bool(reading.missing) is (left is None)


@pytest.fixture
def group() -> Iterator[Path]:
    """Make a memory group of 64 MB of our own, in either version, and remove it."""
    own = cgroup.memory_group()
    if own is None:
        pytest.skip("no memory control group is mounted here")
    place = own / f"ocrlab-test-{os.getpid()}"
    try:
        place.mkdir()
        limit = "memory.max" if (place / "memory.max").exists() else "memory.limit_in_bytes"
        (place / limit).write_text(str(64 * 2**20))
        for name in ("memory.swap.max", "memory.memsw.limit_in_bytes"):
            if (place / name).exists():
                (place / name).write_text(str(64 * 2**20 if "memsw" in name else 0))
    except OSError as error:
        with contextlib.suppress(OSError):
            place.rmdir()
        pytest.skip(f"no control group may be made here: {error}")
    yield place
    place.rmdir()


def test_a_process_that_the_kernel_killed(group: Path) -> None:
    before = cgroup.oom_kills(group)
    if before.value is None:
        pytest.skip(str(before.missing))
    code = "import os, sys; open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()))\n"
    code += "kept = [bytearray(2**20) for _ in range(400)]"
    killed = subprocess.Popen([sys.executable, "-c", code, str(group)])
    assert killed.wait() == -9
    assert cgroup.oom_kills(group).value == before.value + 1
    assert cgroup.memory_limit(root=Path("/")).name == "memory_limit"
    log = kernel_log.lines()
    if log.value is None:
        pytest.skip(str(log.missing))
    events = [event for event in kernel_log.events(log.value) if event.kind == "oom" and event.pid == killed.pid]
    if not events:
        pytest.skip("the kernel log has other numbers of processes: a container")
    assert kernel_log.match(events[-1], killed.pid, "python") > 0.9
    assert {event.detail for event in events} == {"CONSTRAINT_MEMCG"}


def test_use_and_limit_of_the_tightest_group(tmp_path: Path) -> None:
    inner = tmp_path / "sys/fs/cgroup/memory/outer/inner"
    inner.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/outer/inner\n")
    for folder, limit, used in ((inner, 2**63 - 4096, 70), (inner.parent, 1000, 800)):
        (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
        (folder / "memory.stat").write_text("cache 400\ninactive_file 1\ntotal_inactive_file 300\n")
    assert cgroup.memory_use(root=tmp_path).value["limit"] == 1000
    assert cgroup.memory_use(root=tmp_path).value["used"] == 800
    assert cgroup.memory_use(root=tmp_path / "nowhere").missing
