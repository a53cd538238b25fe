"""A variational autoencoder whose codes hold nothing is told; one that uses them, or has just begun, is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from ocrlab.flight import learned
from ocrlab.recording.loops import recording
from ocrlab.recording.posterior import Posterior

SAMPLES = torch.randn(640, 3, generator=torch.Generator().manual_seed(0)) @ torch.randn(
    3, 24, generator=torch.Generator().manual_seed(1)
)


class Autoencoder(nn.Module):
    """A small one; what it gives is (reconstruction, mean, logarithm of the variance), or in another order."""

    def __init__(self, order: tuple[int, ...]) -> None:
        super().__init__()
        self.order = order
        self.encoder, self.decoder = nn.Linear(24, 8), nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 24))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        mean, logarithm = self.encoder(x).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (logarithm / 2).exp()
        given = (self.decoder(code), mean, logarithm)
        return tuple(given[i] for i in self.order)


def said(folder: Path, weight: float, order: tuple[int, ...] = (0, 1, 2), epochs: int = 8) -> str:
    torch.manual_seed(0)
    model = Autoencoder(order)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    back = [order.index(i) for i in range(3)]
    with recording(folder, model, optimizer) as rec:
        for _ in rec.epochs(epochs):
            for (x,) in rec.batches(DataLoader(TensorDataset(SAMPLES), 32, shuffle=True)):
                given = model(x)
                made, mean, logarithm = (given[i] for i in back)
                nats = 0.5 * (mean.square() + logarithm.exp() - 1 - logarithm).sum(1).mean()
                optimizer.zero_grad()
                rec.loss(functional.mse_loss(made, x, reduction="none").sum(1).mean() + weight * nats).backward()
                optimizer.step()
    return "\n".join(learned.read(folder) or [])


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (0, 2, 1)])
def test_codes_that_hold_nothing(tmp_path: Path, order: tuple[int, ...]) -> None:
    told = said(tmp_path, 1000.0, order)
    assert "the posterior has collapsed" in told and "nats of a sample" in told and "divergence weighs" in told


def test_codes_that_are_used_say_nothing(tmp_path: Path) -> None:
    assert said(tmp_path / "used", 1.0) == ""
    assert "posterior" not in said(tmp_path / "short", 1000.0, epochs=2)  # 40 steps


def test_what_is_found_late_and_other_outputs_say_nothing() -> None:
    seen, x, zeros = Posterior(), SAMPLES[:32], torch.zeros(32, 4)
    for _ in range(4):
        seen.see([x], [x.roll(1, 0), zeros, zeros])
        seen.loss(10.0)
    assert "collapsed" in seen.sentence(100, 9.0)
    assert seen.sentence(100, 5.0) == ""  # the loss fell by half after the last look
    assert seen.sentence(64, 9.0) == "" == Posterior().sentence(100, 9.0)
    seen.see([x], [x + 0.1, zeros, zeros])  # it says what is in the sample: the zeros are no code
    assert seen.sentence(100, 9.0) == ""
    others = Posterior()
    for given in ([x], [x, zeros], [zeros[:, :1], zeros], [x, x, x], [torch.zeros(32, 2, 12), zeros.long().float()]):
        others.see([x], given)
    assert others.seen == []
