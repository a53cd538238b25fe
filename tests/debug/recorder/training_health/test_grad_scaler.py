"""A GradScaler that the step bypasses, or that clipping forgets, is reported; the right order is not."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.utils.data import DataLoader, TensorDataset

from ocrlab.debug.flight_record import training_findings
from ocrlab.debug.recorder.loop_recorder import recording

INPUTS = torch.randn(320, 6, generator=torch.Generator().manual_seed(0))
TARGETS = INPUTS[:, :1] - 2 * INPUTS[:, 1:2]
Step = Callable[[Tensor, Any, Any, Any], None]  # loss, model, optimizer, scaler


def report(folder: Path, step: Step, kind: Any = torch.optim.SGD, scale: float = 1024.0) -> str:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = kind(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    with recording(folder, model, optimizer) as rec:
        for _ in rec.epochs(2):
            for inputs, targets in rec.batches(DataLoader(TensorDataset(INPUTS, TARGETS), 16, shuffle=True)):
                loss = rec.loss(functional.mse_loss(model(inputs), targets))
                step(loss, model, optimizer, scaler)
    return "\n".join(training_findings.read(folder) or [])


def after(*parts: Callable[[Any, Any, Any], Any]) -> Step:
    """Return a step of these parts (model, optimizer, scaler), after backward of the scaled loss."""

    def step(loss: Tensor, model: Any, optimizer: Any, scaler: Any) -> None:
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        for part in parts:
            part(model, optimizer, scaler)

    return step


def unscale(_: Any, optimizer: Any, scaler: Any) -> None:
    scaler.unscale_(optimizer)


def clip(model: Any, _: Any, __: Any) -> None:
    clip_grad_norm_(model.parameters(), 0.5)


def by_scaler(_: Any, optimizer: Any, scaler: Any) -> None:
    scaler.step(optimizer)
    scaler.update()


def by_itself(_: Any, optimizer: Any, __: Any) -> None:
    optimizer.step()


@pytest.mark.parametrize(
    "step",
    [after(by_itself), after(lambda m, *_: clip_grad_value_(m.parameters(), 1.0), by_itself)],
    ids=["plain", "clipped by value"],
)
def test_a_scaler_that_the_step_bypasses(tmp_path: Path, step: Step) -> None:
    text = report(tmp_path, step, torch.optim.Adam)
    assert "a GradScaler made the loss 1024 times larger" in text and "scaler.step(optimizer)" in text


def test_gradients_that_are_clipped_in_the_scale_of_the_loss(tmp_path: Path) -> None:
    text = report(tmp_path, after(clip, by_scaler))
    assert "clipped while the loss is scaled" in text and "0.5 in the scale of the loss (1024)" in text
    assert "unscale_" in text


def factor(times: float) -> Step:
    def step(loss: Tensor, _: Any, optimizer: Any, __: Any) -> None:
        optimizer.zero_grad()
        (loss * times).backward()
        optimizer.step()

    return step


def by_hand(loss: Tensor, model: Any, optimizer: Any, _: Any) -> None:
    """Scale and unscale without a GradScaler."""
    optimizer.zero_grad()
    (loss * 4096).backward()
    for p in model.parameters():
        p.grad /= 4096
    optimizer.step()


def several_batches() -> Step:
    """Add the gradients of four batches before each step."""
    count = itertools.count(1)

    def step(loss: Tensor, model: Any, optimizer: Any, scaler: Any) -> None:
        scaler.scale(loss / 4).backward()
        if next(count) % 4 == 0:
            unscale(model, optimizer, scaler)
            clip(model, optimizer, scaler)
            by_scaler(model, optimizer, scaler)
            optimizer.zero_grad()

    return step


RIGHT = {
    "right": after(by_scaler),
    "clipped": after(unscale, clip, by_scaler),
    "clipped to a small limit": after(unscale, lambda m, *_: clip_grad_norm_(m.parameters(), 0.05), by_scaler),
    "unscaled, and stepped by itself": after(unscale, by_itself, lambda _, __, scaler: scaler.update()),
    "by hand": by_hand,
    "a sum in place of a mean": factor(512.0),
    "no scaler": factor(1.0),
    "several batches": several_batches(),
}


@pytest.mark.parametrize("case", list(RIGHT))
def test_the_right_order_says_nothing(tmp_path: Path, case: str) -> None:
    assert report(tmp_path, RIGHT[case], torch.optim.Adam) == ""
