"""Modules that torch.compile replaced are told apart from those that only the flight recorder hooks."""

import pytest
import torch
from torch import nn

import ocrlab
from ocrlab.debug.flight_record import ring_writer
from ocrlab.debug.instruments.compiled_modules import any_compiled, is_compiled, is_compiled_module
from ocrlab.debug.instruments.layers import layer_watch
from ocrlab.debug.instruments.leaks import leak_watch
from ocrlab.debug.instruments.memory import memory_watch
from ocrlab.debug.recorder.stage_hooks import StageHooks
from ocrlab.errors import ConfigError


def test_a_recorded_model_is_not_compiled_and_a_compiled_recorded_model_is(tmp_path) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
    stages = StageHooks(ring_writer.Writer(tmp_path / "ring-0-0.bin", slots=4))
    stages.attach(net)
    assert net[0]._forward_pre_hooks and not is_compiled(net)
    stages.detach()
    net[1].compile(backend="eager")
    assert is_compiled(net) and is_compiled_module(net[1]) and not is_compiled_module(net)
    stages.attach(net)
    assert is_compiled(net) and is_compiled_module(net[1]) and not is_compiled_module(net)
    stages.detach()
    assert is_compiled(torch.compile(nn.ReLU()))


def test_a_compiled_module_counts_while_it_lives_and_a_plain_module_never() -> None:
    plain = nn.Linear(2, 2)
    plain(torch.ones(1, 2))
    graph = torch.compile(nn.Sequential(nn.Linear(2, 2)), backend="eager")
    graph(torch.ones(1, 2))
    assert any_compiled()
    circle = [graph]
    circle.append(circle)  # type: ignore[arg-type]
    del graph, circle
    assert not any_compiled()


class Half(nn.Module):
    """A model of which a part was given to torch.jit."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.body, self.head = part, nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def jit_module(kind: str) -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    return torch.jit.script(net) if kind == "script" else torch.jit.trace(net, torch.ones(2, 3))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["script", "trace"])
def test_parts_of_torch_jit_take_no_hooks_and_end_no_instrument(kind: str) -> None:
    net = Half(jit_module(kind))
    batch = (torch.randn(8, 3), torch.randint(0, 2, (8,)))
    with layer_watch.watch(net, "*") as watch, memory_watch.watch(net) as memory, leak_watch.watch(net):
        nn.functional.cross_entropy(net(batch[0]), batch[1]).backward()
    assert list(watch.table().index) == ["(Half)", "head"]
    assert "of torch.jit, whose insides run no hooks: body" in str(watch)
    assert "(model)" in str(memory)
    assert ocrlab.check_step(net, batch, nn.functional.cross_entropy).ok


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_model_of_torch_jit_reports_what_cannot_be_watched() -> None:
    net = jit_module("script")
    with pytest.raises(ConfigError, match="torch.jit runs no hooks"):
        layer_watch.watch(net, "*")
    batch = (torch.randn(8, 3), torch.randint(0, 4, (8,)))
    assert "takes no hooks" in str(ocrlab.check_step(net, batch, nn.functional.cross_entropy))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with memory_watch.watch(net, optimizer) as memory, leak_watch.watch(net) as leaks:
        for _ in range(3):
            optimizer.zero_grad()
            net(batch[0]).sum().backward()
            optimizer.step()
    assert (len(memory.steps), leaks.ticks) == (3, 3)
