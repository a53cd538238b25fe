"""Files that outlive their writer: a full disk refuses as an error that can be caught, never by SIGBUS."""

import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ocrlab.debug.flight_record import replay_position, ring_format, ring_reader, ring_writer, worker_status
from ocrlab.run_folder import heartbeat, shared_file

FULL = """
import os, sys
from ocrlab.debug.flight_record import replay_position, ring_writer, worker_status
from ocrlab.run_folder import heartbeat
folder = sys.argv[1]
made = heartbeat.Writer(os.path.join(folder, "beat")), replay_position.Writer(os.path.join(folder, "trail"))
refused = []
for make in (
    lambda: ring_writer.Writer(os.path.join(folder, "ring-0-0.bin")),
    lambda: worker_status.StatusPage(folder, 0, 0, 0, 0),
):
    try:
        make()
    except OSError as error:
        refused.append(error.errno)
try:
    with open(os.path.join(folder, "rest"), "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
except OSError:
    pass
for i in range(2000):  # the disk is full: what was given room before still takes its stores
    made[0].beat(step=i, sample="x" * 200)
    made[1].enter({"op": "x" * 8000, "i": i})
print(refused, sorted(os.listdir(folder)), heartbeat.read(os.path.join(folder, "beat"))["step"])
"""
MOUNTED = "mkdir -p {0} && mount -t tmpfs -o size=128k none {0} && exec {1} -c '{2}' {0}"


def test_a_small_full_disk_refuses_at_the_start_and_ends_nobody_later(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("no permission to mount a file system")
    script = MOUNTED.format(tmp_path / "small", sys.executable, FULL.replace("'", '"'))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, env=environment, check=False, timeout=60
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert done.stdout == "[28, 28] ['beat', 'rest', 'trail'] 1999\n"


def written(folder: Path) -> list[str]:
    """Write one of each kind of file, and return what is read back."""
    heartbeat.Writer(folder / "7").beat(step=3, phase="forward", sample="a.png")
    replay_position.Writer(folder / "trail.bin").enter({"op": "aten::add"})
    page = worker_status.StatusPage(folder, 0, 0, 0, 1)
    page.batch('{"indices":"[3]"}', {"torch": b"t" * 5056})
    page.sample("b.png")
    writer = ring_writer.Writer(folder / "ring-0-0.bin", slots=4)
    for i in range(9):
        writer.begin(ring_format.Step(i, i, samples=[f"{i}.png"], random={"torch": bytes([i]) * 5056}))
        writer.stage("head")
        writer.loss(i / 2)
    flight = ring_reader.read_ring(folder / "ring-0-0.bin")
    place = replay_position.read(folder / "trail.bin")
    assert flight.now is not None and place is not None and flight.torn == 0
    assert all(step.random == {"torch": bytes([step.micro]) * 5056} for step in flight.steps)
    return [
        str(heartbeat.newest(folder)), str(place.place), str([(s.micro, s.loss, s.samples) for s in flight.steps]),
        flight.now.stage, str([(w.sample, w.order, w.loaded) for w in flight.workers]),
    ]  # fmt: skip


def test_on_a_file_system_that_copies_on_write_every_change_is_written(tmp_path, monkeypatch):
    (tmp_path / "mapped").mkdir()
    (tmp_path / "written").mkdir()
    mapped = written(tmp_path / "mapped")
    monkeypatch.setattr(shared_file, "file_system", lambda _: "btrfs")
    monkeypatch.setattr(mmap, "mmap", lambda *_: pytest.fail("mapped"))
    # A heartbeat holds its time.
    assert [text.split("'time'")[0] for text in written(tmp_path / "written")] == [
        text.split("'time'")[0] for text in mapped
    ]


def test_where_a_file_system_cannot_reserve_zeros_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", refuses)
    shared_file.create(tmp_path / "a", 3_000_000)
    assert (tmp_path / "a").stat().st_blocks * 512 >= 3_000_000


def test_what_is_not_a_regular_file_is_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for make in (heartbeat.Writer, replay_position.Writer, ring_writer.Writer):
        with pytest.raises(FileExistsError, match="not a regular file"):
            make(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo() and os.listdir(tmp_path) == ["pipe"]
