"""Limits, judged from what the probes measured."""

from __future__ import annotations

from typing import Any

import pytest

from ocrlab.hardware.doctor import check_limits
from ocrlab.records import Check

MIB, GIB = 1 << 20, 1 << 30
MEMORY = {
    "limit": 16 * GIB, "total": 16 * GIB, "available": 12 * GIB, "used_of_group": None, "inactive": 0,
    "address_space": None, "overcommit": "0",
}  # fmt: skip


def the(checks: Any) -> Check:
    [check] = checks
    return check


@pytest.mark.parametrize(
    ("more", "judgement", "cause"),
    [
        ({}, "ok", None),
        ({"available": GIB // 2}, "fail", "host.oom_kill"),
        ({"available": 3 * GIB // 2}, "warn", "host.oom_kill"),
        ({"limit": 4 * GIB, "used_of_group": 4 * GIB - MIB}, "fail", "host.oom_kill"),  # a container that is full
        ({"limit": 4 * GIB, "used_of_group": 4 * GIB - MIB, "inactive": 3 * GIB}, "ok", None),  # of file cache
        ({"address_space": 8 * GIB}, "warn", "host.alloc_fail"),
        ({"overcommit": "2"}, "warn", "host.alloc_fail"),
    ],
)
def test_memory(more: dict[str, Any], judgement: str, cause: str | None) -> None:
    check = the(check_limits.judge_memory([{**MEMORY, **more}], {}))
    assert (check.judgement, check.cause) == (judgement, cause)


@pytest.mark.parametrize(
    ("answer", "judgement"),
    [
        ({"total": 8 * GIB, "free": 8 * GIB, "left": []}, "ok"),
        ({"total": 64 * MIB, "free": 64 * MIB, "left": []}, "warn"),
        ({"total": 64 * MIB, "free": 8 * MIB, "left": ["torch_1_2_3"]}, "fail"),
        ({"error": "No space left on device (errno 28)"}, "fail"),
    ],
)
def test_shared_memory(answer: dict[str, Any], judgement: str) -> None:
    check = the(check_limits.judge_shm([answer], {}))
    assert (check.judgement, check.cause) == (judgement, None if judgement == "ok" else "host.shm")
    assert ("rm /dev/shm/torch_1_2_3" in check.do) == bool(answer.get("left"))


@pytest.mark.parametrize(("soft", "judgement"), [(65536, "ok"), (1024, "ok"), (512, "warn"), (128, "fail")])
def test_open_files(soft: int, judgement: str) -> None:
    check = the(check_limits.judge_files([{"soft": soft, "hard": 4096}], {}))
    assert check.judgement == judgement
    assert check.cause == (None if judgement == "ok" else "host.fd_limit")


def test_open_files_at_the_hard_limit() -> None:
    check = the(check_limits.judge_files([{"soft": 128, "hard": 128}], {}))
    assert check.observed == "128 at most (the hard limit too)"
    assert all(word in check.do for word in ("limits.conf", "--ulimit nofile", "LimitNOFILE"))


def test_threads() -> None:
    answer: dict[str, Any] = {
        "wanted": 64, "started": 64, "error": "", "processes": 9999, "group": None, "used_of_group": None,
    }  # fmt: skip
    assert the(check_limits.judge_threads([answer], {})).judgement == "ok"
    check = the(check_limits.judge_threads([{**answer, "started": 3, "error": "can't start new thread"}], {}))
    assert (check.judgement, check.cause) == ("fail", "host.thread_limit")
    assert the(check_limits.judge_threads([{**answer, "group": 100, "used_of_group": 70}], {})).judgement == "warn"


@pytest.mark.parametrize(
    ("more", "judgement", "cause"),
    [
        ({}, "ok", None),
        ({"free": 100 * MIB}, "fail", "io.disk_full"),
        ({"files": 3}, "fail", "io.disk_full"),
        ({"free": 2 * GIB}, "warn", "io.disk_full"),
        ({"seconds": 60.0}, "warn", None),
        ({"error": "No space left on device (errno 28)"}, "fail", "io.disk_full"),
        ({"error": "Read-only file system (errno 30)"}, "fail", "io.permission"),
        ({"error": "Permission denied (errno 13)"}, "fail", "io.permission"),
    ],
)
def test_disk(more: dict[str, Any], judgement: str, cause: str | None) -> None:
    answer = {"folder": "/runs", "free": 50 * GIB, "files": None, "written": 16 * MIB, "seconds": 0.1}
    check = the(check_limits.judge_disk("disk for runs", [{**answer, **more}]))
    assert (check.judgement, check.cause) == (judgement, cause)
