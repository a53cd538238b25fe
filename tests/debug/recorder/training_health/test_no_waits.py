"""The training monitor never reads a value of a device's tensor while a training runs, and finds the same without.

CPU tensors stand for those of a device: torch's own functions that read a value raise, except for figures that have
arrived.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from ocrlab.debug.flight_record import training_findings
from ocrlab.debug.recorder import figure_transfer
from ocrlab.debug.recorder.figure_transfer import FigureTransfer
from ocrlab.debug.recorder.loop_recorder import recording
from ocrlab.debug.recorder.step_measurements import LossTransfer

READS = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "bincount", "masked_select", "_unique2", "item")


class OnDevice(Tensor):
    """A loss that says that it lies on a device."""

    is_cuda = True


class Event:
    """Stands for torch.cuda.Event: passes two steps after it was recorded."""

    step = 0

    def record(self) -> None:
        self.at = Event.step

    def query(self) -> bool:
        return Event.step > self.at + 1

    def synchronize(self) -> None:
        pytest.fail("waits for a device")


class NoReads(TorchDispatchMode):
    """Raises where a value is read."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name.startswith("index") and any(
            isinstance(index, Tensor) and index.dtype == torch.bool
            for arg in args
            if isinstance(arg, list | tuple)
            for index in arg
        )
        assert self.allowed or not (name in READS or by_mask), f"{name} waits for a device"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def mode(monkeypatch: pytest.MonkeyPatch) -> NoReads:
    """Let the CPU be a device with asynchronous copies; values that have arrived may be read."""
    no_reads, empty = NoReads(), torch.empty
    monkeypatch.setattr(figure_transfer, "LATER", {"cpu"})
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory=False, **k: empty(*a, **k))
    read, arrived = FigureTransfer.read, LossTransfer.arrived

    def reading(self: Any, *args: Any) -> None:
        no_reads.allowed = True
        Event.step += 10 * len(args)  # at the end of a training
        read(self, *args)
        no_reads.allowed = bool(args)  # everything is on the host then

    def arriving(self: Any, seconds: float = 0.0) -> Iterator[Any]:
        no_reads.allowed = True
        Event.step += 10 if seconds else 1
        pairs = list(arrived(self))
        no_reads.allowed = False
        yield from pairs

    monkeypatch.setattr(FigureTransfer, "read", reading)
    monkeypatch.setattr(LossTransfer, "arrived", arriving)
    return no_reads


class Case:
    """A training of a classifier with a fault, and a validation after each epoch."""

    def __init__(self, fault: str) -> None:
        torch.manual_seed(0)
        self.fault = fault
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 4))
        if fault == "collapsed":
            self.model[3] = nn.Sequential(nn.Linear(16, 1), nn.LayerNorm(1), nn.Linear(1, 4))
        inputs = torch.randn(320, 8)
        classes = inputs[:, :4].argmax(1)
        if fault == "shuffled":
            classes = classes[torch.randperm(320)]
        if fault == "equal":
            inputs = torch.arange(8.0).expand(320, 8).clone()
        if fault == "broken":
            inputs[18, 3] = torch.nan
        count = 1 if fault == "same" else 16
        self.batches = [(inputs[i % count :: 16], classes[i % count :: 16]) for i in range(16)]
        if fault == "constant":
            self.batches = [(x, torch.zeros_like(y)) for x, y in self.batches]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr={"rate": 0.0, "shuffled": 1e-3}.get(fault, 0.05))
        if fault == "decay":
            self.optimizer.param_groups[0]["weight_decay"] = 40.0

    def run(self, folder: Path, device: bool) -> str:
        model, optimizer = self.model, self.optimizer
        with recording(folder, model, optimizer) as rec:
            for _ in rec.epochs(12):
                model.train()
                for inputs, classes in rec.batches(self.batches):
                    if self.fault != "stale":
                        optimizer.zero_grad()
                    loss = functional.cross_entropy(model(inputs), classes)
                    if device:
                        loss = loss.as_subclass(OnDevice)
                    rec.loss(loss)
                    (loss * 1024.0 if self.fault == "scaled" else loss).backward()
                    if self.fault == "zeroed":
                        optimizer.zero_grad(set_to_none=False)
                    optimizer.step()
                model.eval()
                with rec.validating(), torch.no_grad():
                    for inputs, _ in self.batches:
                        model(inputs * 50 + 120 if self.fault == "scales" else inputs)
        return "\n".join(training_findings.read(folder) or [])


FAULTS = {
    "": "",
    "collapsed": "the same answer",
    "shuffled": "one answer for all samples",
    "equal": "samples of a batch were the same",
    "same": "",  # a list of batches has no length in samples
    "broken": "batch 3 contains nan",
    "constant": "every target was 0",
    "rate": "the learning rate was 0",
    "decay": "weight decay",
    "stale": "gradients are never set to zero",
    "scaled": "",  # there is no scaler
    "zeroed": "all gradients were 0",
    "scales": "validation gives the model other numbers",
}


OFTEN = ("", "broken", "stale", "scaled", "scales")


@pytest.mark.parametrize("fault", [pytest.param(f, marks=() if f in OFTEN else pytest.mark.slow) for f in FAULTS])
def test_no_value_is_read_and_the_findings_are_those_of_the_host(tmp_path, fault, mode, monkeypatch, capsys):
    case = Case(fault)
    with mode:
        later = case.run(tmp_path / "device", True)
    assert not (tmp_path / "device" / "flight" / "ocrlab-errors.log").exists(), capsys.readouterr().err
    monkeypatch.setattr(figure_transfer, "LATER", set())
    at_once = Case(fault).run(tmp_path / "host", False)
    assert FAULTS[fault] in at_once
    assert later == at_once


def test_figures_of_a_kernel_that_never_ends_are_not_waited_for(mode: NoReads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Event, "query", lambda _: False)
    transfer, arrived = FigureTransfer(), list[Any]()
    transfer.send([torch.ones(2)], arrived.append)
    transfer.read(0.01)
    assert arrived == [] and len(transfer) == 1
    assert len(transfer.abandon()) == 2 and not transfer


def test_figures_of_several_types_arrive_in_their_order_and_shapes(mode: NoReads) -> None:
    transfer, arrived = FigureTransfer(), list[Any]()
    sent = [torch.tensor(True), torch.rand(2, 3), torch.tensor(7), torch.tensor(2.0), torch.zeros(0, 4)]
    transfer.send(sent, arrived.extend)
    transfer.read()
    assert arrived == []
    transfer.read(0.01)
    assert [t.shape for t in arrived] == [t.shape for t in sent]
    mode.allowed = True
    assert all(torch.equal(a, b) for a, b in zip(arrived, sent, strict=True))
