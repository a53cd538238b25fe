"""An error of an instrument ends the instrument, never the training; hooks do not travel with copies of the model."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from ocrlab.debug.instruments.dataloader import loader_watch
from ocrlab.debug.instruments.layers import layer_watch
from ocrlab.debug.instruments.leaks import leak_watch
from ocrlab.debug.instruments.memory import memory_watch
from ocrlab.debug.instruments.profiler import step_profiler

WATCHES: dict[str, Any] = {
    "memory": memory_watch.watch,
    "leaks": leak_watch.watch,
    "layers": lambda model: layer_watch.watch(model, "*"),
    "profile": lambda model: step_profiler.steps(1, 1, model=model),
}


def train(model: nn.Module, steps: int = 6, after: Any = lambda: None) -> float:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().sum()
        loss.backward()
        optimizer.step()
        after()
    return float(loss.detach())


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("name", WATCHES)
def test_models_are_copied_and_saved_as_ever(name: str) -> None:
    model = net()
    with WATCHES[name](model):
        train(model, 2)
        others = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        torch.save(model, io.BytesIO())
        for other in others:
            other(torch.ones(4, 8))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


PLANTED = [
    ("memory", memory_watch.MemoryWatch, "_find_border"),
    ("memory", memory_watch.MemoryWatch, "_step"),
    ("memory", memory_watch.MemoryWatch, "_baseline"),
    ("leaks", leak_watch.LeakWatch, "_sample"),
    ("leaks", leak_watch.WorkerLeaks, "tick"),
    ("layers", layer_watch.LayerWatch, "_enter"),
    ("layers", layer_watch.LayerWatch, "_count_optimizer_step"),
    ("profile", step_profiler.StepProfile, "_end_profile"),
]


@pytest.mark.parametrize(("name", "kind", "method"), PLANTED)
def test_an_error_inside_is_reported_once_and_changes_nothing(name, kind, method, monkeypatch, capsys):
    expected = train(net())

    def fails(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(kind, method, fails)
    model = net()
    with WATCHES[name](model) as watch:
        assert train(model, after=lambda: watch.step() if name == "profile" else None) == expected
    assert capsys.readouterr().err.count("ZeroDivisionError: planted") == 1


def test_an_error_in_the_hooks_of_a_loader_leaves_its_batches(monkeypatch, capsys):
    monkeypatch.setattr(loader_watch.sample_timing, "TimedDataset", None)
    source = DataLoader(torch.arange(8), batch_size=4)  # type: ignore[arg-type]
    with loader_watch.watch(source) as watch:
        assert [batch.tolist() for batch in source] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert watch.guard.problem.startswith("TypeError") and watch.steps().empty
    assert capsys.readouterr().err.count("loader.watch ended early; the program continues: TypeError") == 1
