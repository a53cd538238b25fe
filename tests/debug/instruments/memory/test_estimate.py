"""The estimate of a step: exact where it can be counted by hand, and equal to what a real step holds."""

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ocrlab.debug.instruments.memory import memory_watch
from ocrlab.debug.instruments.memory.estimate import Estimate, estimate
from ocrlab.errors import ConfigError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)).relu())  # type: ignore[no-any-return]


def loss(model: nn.Module, batch: Any) -> Tensor:
    return model(batch["image"]).float().square().mean()  # type: ignore[no-any-return]


def images(count: int, side: int = 64) -> dict[str, Tensor]:
    return {"image": torch.empty(count, 3, side, side, device="meta")}


def of(count: int, **words: Any) -> Estimate:
    return estimate(Net(), images(count), loss, **words)


def test_parts_that_can_be_counted_by_hand_are_exact() -> None:
    big = nn.Linear(1000, 1000, bias=False)
    needs = estimate(big, torch.empty(1, 1000, device="meta"), lambda m, x: m(x).sum())
    assert needs.parts["parameters"] == 4_000_000
    assert needs.parts["gradients"] == 4_000_000
    assert needs.parts["optimiser state"] == pytest.approx(8_000_000, rel=0.001)  # AdamW keeps two; a step is a number
    assert needs.peak == sum(needs.parts.values())


def test_it_is_what_a_real_step_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()  # what other tests left in cycles would go midway
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    with memory_watch.watch(model, optimizer) as watch:
        for _ in range(2):
            batch = {"image": torch.zeros(4, 3, 64, 64)}
            loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert watch.highest is not None
    peak = watch.highest.peak
    others = max(0, peak.parts.get("earlier", 0) - batch["image"].nbytes)  # left by other tests of this process
    assert of(4).peak == pytest.approx(peak.bytes - others, rel=0.05)


def test_model_batch_and_random_state_stay_as_they_are() -> None:
    model, batch = Net(), {"image": torch.rand(2, 3, 32, 32)}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    pixels, state = batch["image"].clone(), torch.get_rng_state()
    estimate(model, batch, loss)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(pixels, batch["image"])
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_what_comes_behind_a_step_counts_where_it_is_higher() -> None:
    def after(model: nn.Module) -> None:
        model(torch.empty(1, 3, 512, 512))

    alone, both = of(1), of(1, after=after)
    assert both.phase == "validation"
    assert both.parts["validation"] >= 8 * 512 * 512 * 4
    assert both.peak > alone.peak
    assert of(64, after=after).parts["validation"] == 0  # it is gone when the next step is at its height


def test_what_depends_on_values_is_refused_with_the_way_out() -> None:
    def chosen(model: nn.Module, batch: Any) -> Tensor:
        out = model(batch["image"])
        return out[out > 0].mean()  # type: ignore[no-any-return]

    with pytest.raises(ConfigError, match="ocrlab memory fit"):
        estimate(Net(), images(2), chosen)


def test_wrong_words_are_refused() -> None:
    with pytest.raises(ConfigError, match="precision"):
        of(1, precision="int8")
