"""The page of a loader worker: its sample, its batch, and the first batch that failed, which stays."""

from __future__ import annotations

import json
import os

from ocrlab.debug.flight_record import worker_status
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


def test_states_too_large_for_the_page_are_left_out(tmp_path):
    page = StatusPage(tmp_path, 0, 0, 0, 0)
    page.batch('{"indices": "[1]"}', {"torch": bytes(200_000)})
    (worker,) = read_workers(tmp_path, 0, 0)
    assert (worker.order, worker.loaded) == ({"indices": "[1]"}, {})
