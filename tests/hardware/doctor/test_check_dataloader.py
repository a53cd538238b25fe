"""The finding on a DataLoader's round trip."""

from __future__ import annotations

from typing import Any

import pytest

from ocrlab.hardware.doctor import check_dataloader
from ocrlab.hardware.doctor.check_spec import Options


@pytest.mark.parametrize(("more", "judgement"), [({}, "ok"), ({"same": False}, "fail"), ({"seconds": 99.0}, "warn")])
def test_judgements(more: dict[str, Any], judgement: str) -> None:
    answer = {"method": "fork", "batches": 4, "seconds": 0.2, "same": True, **more}
    [check] = check_dataloader.judge([{"at": "batch 4 of 4"}, answer], {})
    assert (check.name, check.judgement) == ("DataLoader by fork", judgement)


def test_fork_and_spawn_are_asked(options: Options) -> None:
    assert [ask.arguments for ask in check_dataloader.asks(options)] == [{"method": "fork"}, {"method": "spawn"}]
