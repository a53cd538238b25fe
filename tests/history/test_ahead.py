"""What is asked of the disk before it is read: only what is not in memory, and never anything that could hang."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ocrlab.history import ahead, listing


def folders(place: Path, count: int) -> list[str]:
    for number in range(count):
        run = place / f"run-{number:04d}"
        run.mkdir()
        (run / ".SUCCESS").write_text(
            '{"schema": 1, "status": "success", "metrics": {}, "started": "2026-11-24T00:00:00"}'
        )
        (run / "config.yaml").write_text("{}\n")
    return [str(place / f"run-{number:04d}") for number in range(count)]


Begun = list[tuple[list[str], subprocess.Popen[bytes]]]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Begun:
    calls: Begun = []
    begin = ahead._begin

    def noted(folders: list[str]) -> subprocess.Popen[bytes]:
        calls.append((list(folders), begin(folders)))
        return calls[-1][1]

    monkeypatch.setattr(ahead, "_begin", noted)
    return calls


def test_nothing_is_asked_where_everything_is_in_memory_or_little_is_there(tmp_path: Path, begun: Begun) -> None:
    for some in (folders(tmp_path, ahead.FEW + 1), []):
        with ahead.asked(some):
            pass
    assert begun == []


def test_a_process_asks_where_something_is_not_in_memory_and_is_gone_afterwards(
    tmp_path: Path, begun: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "_absent", lambda folder: folder.endswith("run-0100"))
    monkeypatch.setattr(ahead, "PROBES", ahead.FEW)
    every = folders(tmp_path, ahead.FEW)
    with pytest.raises(KeyError), ahead.asked(every):
        raise KeyError
    [(asked, child)] = begun
    assert asked == every
    assert child.returncode is not None


def test_the_process_asks_for_every_file_once(tmp_path: Path) -> None:
    every = folders(tmp_path, 3)
    hook = (
        "import os; os.posix_fadvise = lambda n, *_: os.write(2, os.readlink(f'/proc/self/fd/{n}').encode() + b';'); "
    )
    root = str(Path(ahead.__file__).parents[2])
    command = [sys.executable, "-I", "-S", "-c", hook + ahead.CHILD, root]
    done = subprocess.run(command, input=os.fsencode("\0".join(every)), capture_output=True, check=True)
    names = done.stderr.decode().strip(";").split(";")
    assert sorted(names) == sorted(f"{run}/{name}" for run in every for name in (".SUCCESS", "config.yaml"))


def test_a_list_is_read_without_the_process_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_absent", lambda _folder: True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    folders(tmp_path, ahead.FEW)
    assert len(listing.list_runs([tmp_path])) == ahead.FEW


def test_the_ends_of_a_failed_run_are_asked_for_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".FAILURE").write_text("{}")
    (tmp_path / "metrics.csv").write_bytes(b"x" * 3 * ahead.PIECE)
    places: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _number, start, *_: places.append(start))
    ahead._ask([str(tmp_path)])
    assert sorted(places) == [0, 0, 2 * ahead.PIECE]


def test_pipes_links_and_what_is_gone_are_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".SUCCESS")
    (tmp_path / "config.yaml").symlink_to("/dev/zero")
    ahead._ask([str(tmp_path), str(tmp_path / "nowhere")])
    assert not ahead._absent(str(tmp_path)) and not ahead._absent(str(tmp_path / "nowhere"))


def test_a_file_that_left_memory_is_absent(tmp_path: Path) -> None:
    (run,) = folders(tmp_path, 1)
    assert not ahead._absent(run)
    number = os.open(f"{run}/.SUCCESS", os.O_RDWR)
    os.fsync(number)

    def left(asked: Callable[[], bool]) -> bool:
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        return asked()  # once: whoever asks may make the kernel begin to read

    def blocks() -> bool:
        try:
            os.preadv(number, [bytearray(1)], 0, os.RWF_NOWAIT)
        except BlockingIOError:
            return True
        return False

    try:
        if not any(left(blocks) for _ in range(5)):
            pytest.skip("this file system keeps its files in memory")
        assert any(left(lambda: ahead._absent(run)) for _ in range(5))
    finally:
        os.close(number)


def test_the_list_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = folders(tmp_path, ahead.FEW)
    plain = listing.list_runs([tmp_path])
    monkeypatch.setattr(ahead, "_absent", lambda _folder: True)
    assert listing.list_runs([tmp_path]) == plain and len(plain) == len(every)
