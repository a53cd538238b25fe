"""Twenty recorded steps with dropout on one device: `python recorded_training.py FOLDER DEVICE [--deterministic]`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import ocrlab

STEPS, BATCH = 20, 4


class Pages(Dataset[Tensor]):
    """Random pages, the same ones each time."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> Tensor:
        return torch.rand(3, 96, 96, generator=torch.Generator().manual_seed(index))


def network() -> nn.Module:
    """Return convolutions, an interpolation (whose gradient is not deterministic on a card) and dropout."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Dropout2d(0.1),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Conv2d(32, 1, 3, padding=1),
    )


def main() -> None:
    """Train; the losses of the record are what a replay is compared with."""
    folder, device = Path(sys.argv[1]), sys.argv[2]
    torch.use_deterministic_algorithms("--deterministic" in sys.argv, warn_only=True)
    torch.manual_seed(0)
    model: Any = network().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Pages(), batch_size=BATCH, shuffle=True)
    with ocrlab.record(folder, model, optimizer, snapshot_every=10**9) as rec:
        for pages in rec.batches(loader):
            loss = rec.loss(model(pages.to(device)).square().mean())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
