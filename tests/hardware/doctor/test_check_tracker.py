"""The tracker is only asked for where tracking is on, and then by the way that it would go."""

from __future__ import annotations

from pathlib import Path

import pytest

from ocrlab.hardware.doctor import check_tracker


@pytest.mark.parametrize(
    ("environment", "on"),
    [
        ({}, False),
        ({"WANDB_MODE": "offline", "WANDB_API_KEY": "x"}, False),
        ({"WANDB_MODE": "disabled"}, False),
        ({"WANDB_DISABLED": "true", "WANDB_API_KEY": "x"}, False),
        ({"WANDB_MODE": "online"}, True),
        ({"WANDB_API_KEY": "x"}, True),
    ],
)
def test_when_tracking_is_on(environment: dict[str, str], on: bool, tmp_path: Path) -> None:
    assert (check_tracker.off(environment, tmp_path / ".netrc") is None) == on


def test_a_login_in_netrc_counts(tmp_path: Path) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine api.wandb.ai\n  login user\n  password x\n")
    assert check_tracker.off({}, netrc) is None
    assert check_tracker.off({"WANDB_MODE": "offline"}, netrc)


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, ("api.wandb.ai", 443)),
        ({"WANDB_BASE_URL": "http://tracker.local:8080"}, ("tracker.local", 8080)),
        ({"https_proxy": "http://user:secret@proxy.local:3129"}, ("proxy.local", 3129)),
        ({"HTTPS_PROXY": "proxy.local"}, ("proxy.local", 3128)),
    ],
)
def test_where_it_connects_to(environment: dict[str, str], place: tuple[str, int]) -> None:
    host, port, words = check_tracker.target(environment)
    assert (host, port) == place
    assert "secret" not in words


def test_judgements() -> None:
    def judged(**answer: object) -> str:
        [check] = check_tracker.judge("h", 443, "the server", [answer])
        assert check.cause == (None if check.judgement == "ok" else "tracker.network")
        return check.judgement

    assert judged(seconds=0.1) == "ok"
    assert judged(seconds=3.0) == "warn"
    assert judged(error="TimeoutError: timed out", seconds=5.0) == "fail"
