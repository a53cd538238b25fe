"""Lines that would wait for a device are reported; values that are on the host in any case are not."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from ocrlab.debug.instruments.profiler import sync_points
from ocrlab.losses import db_loss
from ocrlab.losses.db_loss import TargetMaps


def operators(act: object) -> dict[str, int]:
    lines = sync_points.WaitFinder()
    lines.start()
    try:
        act()  # type: ignore[operator]
    finally:
        lines.stop()
    return {f"{place.operator} {place.within}".strip(): count for place, count in lines.places.items()}


def test_the_optimisers_own_count_of_steps_is_on_the_host() -> None:
    model = nn.Linear(3, 2)
    step = torch.optim.AdamW(model.parameters(), foreach=False)
    model(torch.ones(4, 3)).sum().backward()
    assert operators(step.step) == {}


def test_an_optimiser_that_looks_at_gradients_waits() -> None:
    model = nn.Linear(3, 2)
    step = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        step.zero_grad()
        loss = model(torch.ones(4, 3)).square().sum()
        loss.backward()
        return loss

    assert operators(lambda: step.step(closure)).get("item optimiser step", 0) > 0


def test_loading_and_packed_lengths_are_on_the_host() -> None:
    loader = DataLoader([torch.ones(2), torch.zeros(2)], shuffle=True)
    assert operators(lambda: list(loader)) == {}
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(2, 4, 3), torch.tensor([2, 4]), True, False)
    assert operators(lambda: nn.LSTM(3, 5)(packed)) == {}
    assert operators(lambda: torch.ones(3).sum().item()) == {"item": 1}


def test_what_a_step_computed_and_reads_on_the_host_waits_and_what_was_loaded_does_not() -> None:
    numbers = torch.arange(6.0)
    assert operators(lambda: (numbers * 2).tolist()) == {"tolist": 1}
    assert operators(lambda: (numbers * 2).cpu().numpy()) == {"cpu": 1}
    assert operators(lambda: (numbers.tolist(), numbers.cpu(), numbers.numpy())) == {}


def test_what_the_loss_reads_where_the_maps_lie_on_the_cpu_is_no_wait_for_a_gpu() -> None:
    maps = [torch.rand(1, 8, 8, requires_grad=True) for _ in range(2)]
    targets = TargetMaps(*(torch.ones(1, 8, 8) for _ in range(4)))
    total = db_loss.on_cpu(maps[0], maps[1], targets, (5.0, 1.0, 10.0), 3.0).total
    assert operators(lambda: (2 * total).backward()) == {}
    assert operators(lambda: (2 * total.detach()).item()) == {"item": 1}


def warn(warned: sync_points.WarnedWaits) -> list[str]:
    with warned:
        for _ in range(2):
            warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)
        warnings.warn("of the user", stacklevel=1)
        return [message.filename for message in warned.take()] + [message.filename for message in warned.take()]


def test_warnings_of_a_wait_are_recorded_and_all_others_are_shown() -> None:
    show, filters = warnings.showwarning, list(warnings.filters)
    with pytest.warns(UserWarning, match="of the user") as shown:
        assert warn(sync_points.WarnedWaits()) == [__file__] * 2
    assert len(shown) == 1 and warnings.showwarning is show and list(warnings.filters) == filters
