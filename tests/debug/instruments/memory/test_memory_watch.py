"""Where the memory goes: every storage once, by kind, by module, and the training is not changed by being watched."""

import gc
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils.checkpoint import checkpoint

from ocrlab.debug.instruments.memory import memory_watch
from ocrlab.debug.instruments.memory.storage_tracker import stored_bytes
from ocrlab.debug.instruments.memory.timeline import Block, summarise, table_text
from ocrlab.errors import ConfigError


class Net(nn.Module):
    """Two linear layers of a quarter of a MiB each, the second one checkpointed if asked for."""

    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(256, 256, bias=False), nn.Sigmoid())
        self.second = nn.Sequential(nn.Linear(256, 256, bias=False), nn.Sigmoid(), nn.Sigmoid())
        self.again = again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return checkpoint(self.second, x, use_reentrant=False) if self.again else self.second(x)


def train(model: nn.Module, steps: int = 2, rows: int = 512, optimizer: Any = None) -> list[float]:
    optimizer = optimizer or torch.optim.Adam(model.parameters())
    losses = []
    for step in range(steps):
        loss = model(torch.full((rows, 256), 0.1 * (step + 1))).sum() / rows
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def row(watch: memory_watch.MemoryWatch, name: str) -> Any:
    return next(row for row in watch.table() if row.module == name)


def test_parameters_gradients_state_and_activations_are_counted_to_the_byte() -> None:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    with memory_watch.watch(model) as watch:
        train(model, optimizer=optimizer)
    step = watch.steps[-1]
    weights = 2 * 256 * 256 * 4
    assert step.end["parameters"] == weights
    assert step.end["gradients"] == weights
    assert step.end["optimizer"] == 2 * weights + 2 * 64  # Adam's two moments, and a counter for each parameter
    batch = 512 * 256 * 4
    saved = {r.module: r.activations for r in step.rows}
    assert saved["first.1"] == batch  # what Sigmoid saves; the linear layers save the batch and the output before
    assert saved["second.1"] == saved["second.2"] == batch
    assert (row(watch, "first.0").parameters, row(watch, "first.0").optimizer) == (weights / 2, weights + 64)
    assert len(watch.steps) == 2


def test_the_peak_has_a_module_an_operator_and_a_direction() -> None:
    model = Net()
    with memory_watch.watch(model) as watch:
        train(model, steps=1)
    assert watch.highest is not None
    peak = watch.highest.peak
    assert peak.phase == "backward"
    assert peak.module == "second.2"
    assert "sigmoid_backward" in peak.op
    assert peak.bytes == sum(peak.parts.values())
    assert "in the backward pass in second.2" in watch.finding()
    assert str(watch).splitlines()[0].startswith("module ")
    assert str(watch).endswith(watch.finding())
    assert row(watch, "second.2").backward == peak.bytes


def test_a_shared_and_a_viewed_storage_counts_once() -> None:
    model = Net()
    model.second[0].weight = model.first[0].weight
    with memory_watch.watch(model) as watch:
        x = torch.ones(512, 256)
        views = [x.view(-1), x.t(), x[:5]]
        model(views[0].view(512, 256)).sum().backward()
        watch.step()
    assert watch.steps[0].end["parameters"] == 256 * 256 * 4


def test_a_checkpointed_module_keeps_its_input_only_and_computes_again() -> None:
    figures = {}
    for again in (False, True):
        model = Net(again)
        with memory_watch.watch(model) as watch:
            train(model, steps=1)
        figures[again] = {r.module: r for r in (*watch.table(1), *watch.table(2))}
    batch = 512 * 256 * 4
    assert figures[True]["second"].activations < figures[False]["second"].activations
    assert figures[True]["first.1"].activations == batch
    assert figures[True]["second"].backward > 0


@pytest.mark.parametrize("again", [False, True])
def test_the_training_is_the_same_bit_for_bit(again: bool) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(Net(again), nn.Dropout(0.5), nn.ReLU(inplace=True))
    copy = pickle.loads(pickle.dumps(model))
    torch.manual_seed(2)
    plain, state = train(model, 3), torch.get_rng_state()
    torch.manual_seed(2)
    with memory_watch.watch(copy):
        watched = train(copy, 3)
    assert watched == plain
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), copy.parameters(), strict=True))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in copy.modules())


def test_an_in_place_change_is_still_an_error() -> None:
    """Hooks on saved tensors switch autograd's own check off; without it the gradients would be wrong in silence."""
    x = torch.ones(3, requires_grad=True)
    with memory_watch.watch(nn.Identity()):
        y = (x * 2).exp()
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        z = x * 2
        z.pow(2).sum().backward()


def test_two_watches_at_once_and_things_that_are_no_model_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"nn\.Module"), memory_watch.watch("model"):  # type: ignore[arg-type]
        pass
    with memory_watch.watch(Net()), pytest.raises(ConfigError, match="already active"), memory_watch.watch(Net()):
        pass


def test_steps_with_accumulation_two_optimizers_or_none() -> None:
    model = Net()
    first = torch.optim.SGD(model.first.parameters(), lr=0.1, momentum=0.9)
    second = torch.optim.SGD(model.second.parameters(), lr=0.1)
    with memory_watch.watch(model) as watch:
        for _ in range(3):
            for _ in range(2):
                model(torch.ones(4, 256)).sum().backward()
            first.step()
            second.step()
    assert len(watch.steps) == 3
    assert watch.steps[-1].end["optimizer"] == 256 * 256 * 4
    del first, second
    with memory_watch.watch(model) as watch:
        for _ in range(3):
            model(torch.ones(4, 256)).sum().backward()
    assert len(watch.steps) == 3


def test_memory_retained_from_step_to_step_is_reported() -> None:
    model, outputs = Net(), []
    with memory_watch.watch(model) as watch:
        for _ in range(4):
            outputs.append(model(torch.ones(512, 256)))
            watch.step()
    grown = [step.end["earlier"] for step in watch.steps]
    assert grown[-1] - grown[-2] >= 512 * 256 * 4


def test_sparse_and_empty_tensors_pass() -> None:
    model = nn.Embedding(100, 8, sparse=True)
    with memory_watch.watch(model) as watch:
        model(torch.tensor([1, 2, 3])).sum().backward()
        torch.empty(0).sum()
        watch.step()
    assert watch.steps[0].end["gradients"] > 0


def test_what_a_compiler_only_thinks_of_is_no_memory() -> None:
    """torch.compile leaves fake tensors behind, whose sizes may be symbols and whose device is a lie."""
    real, net, peaks = torch.randn(2048, 1024), nn.Linear(4, 2), []
    symbols = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * 2)
    gc.collect()  # what other tests left in cycles would go midway
    tensors: list[torch.Tensor] = []
    for fakes in (None, FakeTensorMode(), FakeTensorMode(shape_env=ShapeEnv())):
        if fakes is not None:
            tensors.append(fakes.from_tensor(real, symbolic_context=symbols if fakes.shape_env else None))
        with memory_watch.watch(net) as watch:
            net(torch.ones(3, 4)).sum().backward()
        peaks.append(watch.steps[-1].peak.bytes)
    assert max(peaks) - min(peaks) < stored_bytes(real) == 8 * 1024**2
    assert [stored_bytes(tensor) for tensor in tensors] == [0, 0] and stored_bytes(real.to_sparse()) > 0


def test_the_timeline_adds_up_and_is_plotted() -> None:
    model = Net()
    with memory_watch.watch(model) as watch:
        train(model, 1)
    step = watch.steps[0]
    totals = [sum(values) for values in zip(*step.timeline.values(), strict=True)]
    assert max(totals) == step.peak.bytes
    figure = watch.plot()
    assert step.peak.module.strip("()") in figure.axes[0].get_title(loc="left")
    assert {segment.phase for segment in step.segments} >= {"forward", "backward"}


def test_blocks_of_other_devices_are_not_counted() -> None:
    blocks = [
        Block(100, "cpu", "a", "x", "forward", 1, 5, "activations", "a"),
        Block(50, "cpu", "b", "y", "backward", 3, 4, "workspace", ""),
        Block(7, "cuda:0", "b", "y", "backward", 3, 4, "workspace", ""),
    ]
    step = summarise(0, blocks, 0, 6, "cpu")
    assert (step.peak.bytes, step.peak.module, step.peak.phase) == (150, "b", "backward")
    assert [row.workspace for row in step.rows] == [0, 50]
    lines = table_text(step.rows).splitlines()
    assert len({len(line) for line in lines}) == 1 and lines[0].index("workspace") + 9 == lines[2].index("50 B") + 4


def test_drawing_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from ocrlab.debug.instruments.memory import memory_plot\n"
    code += "from ocrlab.debug.instruments.leaks import leak_report"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
