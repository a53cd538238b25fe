"""The page of a loader worker and the trail of a replayed step: their last words outlive the process."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from ocrlab.debug.flight_record import replay_position, worker_status
from ocrlab.debug.flight_record.worker_status import StatusPage, read_workers


def test_the_newest_sample_and_batch_are_read(tmp_path):
    page = StatusPage(tmp_path, 0, 2, 0, 1)
    for i in range(5):
        page.batch(json.dumps({"indices": f"[{i}]"}), {"numpy": b"n", "torch": bytes([i]) * 5056})
        page.sample(f"page_{i}.png")
    (worker,) = read_workers(tmp_path, 0, 2)
    assert (worker.pid, worker.worker, worker.sample) == (os.getpid(), 1, "page_4.png")
    assert worker.order == {"indices": "[4]"}
    assert worker.loaded == {"numpy": b"n", "torch": b"\x04" * 5056}
    assert read_workers(tmp_path, 0, 1) == []
    assert next(tmp_path.iterdir()).stat().st_mode & 0o777 == 0o600


def test_the_batch_that_failed_stays(tmp_path):
    page = StatusPage(tmp_path, 0, 0, 0, 0)
    page.batch('{"indices": "[7]"}', {})
    page.fail("page_7.png")
    page.batch('{"indices": "[8]"}', {})
    page.sample("page_8.png")
    (worker,) = read_workers(tmp_path, 0, 0)
    assert (worker.failed, worker.sample, worker.order) == ("page_7.png", "page_8.png", {"indices": "[7]"})
    assert worker_status.last_batch_failed([worker], worker.failed_at - 1)
    assert not worker_status.last_batch_failed([worker], worker.failed_at + 1), "the program has gone on without it"


def test_a_batch_too_large_is_left_out_and_a_broken_page_is_skipped(tmp_path):
    page = StatusPage(tmp_path, 0, 0, 0, 0)
    page.batch(json.dumps({"indices": repr(list(range(40_000)))}), {})
    (tmp_path / "worker-0-0-0-1.bin").write_bytes(b"OCRLABW1")
    (worker,) = read_workers(tmp_path, 0, 0)
    assert worker.order == {"left_out": True}


def test_the_last_place_outlives_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "trail.bin"
    code = f"""
import os
from ocrlab.debug.flight_record import replay_position
writer = replay_position.Writer({str(path)!r})
for number in range(300):
    writer.enter({{"op": f"aten::op{{number}}", "inputs": [[2, 3]]}})
os.kill(os.getpid(), {int(signal.SIGKILL)})
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    position = replay_position.read(path)
    assert position is not None
    assert (position.place, position.count) == ({"op": "aten::op299", "inputs": [[2, 3]]}, 300)
    assert 0 < position.slowest < 60
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_is_no_trail_is_none(tmp_path: Path) -> None:
    path = tmp_path / "trail.bin"
    assert replay_position.read(path) is None
    for data in (b"", b"OCRLABT1", os.urandom(replay_position.SIZE), bytes(replay_position.SIZE)):
        path.write_bytes(data)
        assert replay_position.read(path) is None
    replay_position.Writer(path)
    assert replay_position.read(path) is None  # nothing was said yet


def test_fields_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    writer = replay_position.Writer(tmp_path / "trail.bin")
    writer.enter({"op": "aten::cat", "inputs": ["(2, 3) fp32"] * 5000, "line": "x" * 9000})
    position = replay_position.read(tmp_path / "trail.bin")
    assert position is not None and position.place == {"op": "aten::cat", "inputs": "...", "line": "..."}
