"""Module and operator from a traceback: of this Python's own tracebacks, and of those that others write."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ocrlab.debug.diagnosis import failure_place
from ocrlab.debug.diagnosis.classify import classify
from ocrlab.debug.diagnosis.log_records import Line, read_records
from ocrlab.debug.diagnosis.verdict_files import sentence
from ocrlab.debug.flight_record import ring_writer
from ocrlab.debug.recorder.stage_hooks import StageHooks
from ocrlab.records import Incident

IMPL = [
    '  File "/v/site-packages/torch/nn/modules/module.py", line 1500, in _wrapped_call_impl',
    "    return self._call_impl(*args, **kwargs)",
    '  File "/v/site-packages/torch/nn/modules/module.py", line 1511, in _call_impl',
    "    return forward_call(*args, **kwargs)",
]
HEAD = ["Traceback (most recent call last):", '  File "train.py", line 9, in <module>', "    loss = step(net, batch)"]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)
        self.acts = nn.ModuleList([nn.ReLU(), nn.ReLU()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.acts[1](self.mix(self.norm(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Embedding(10, 4), nn.Sequential(Block(), Block())

    def forward(self, ids: torch.Tensor, wrong: bool = False) -> torch.Tensor:
        x = self.stem(ids)[None].permute(0, 2, 1)[..., None]
        return self.blocks(x[:, :3] if wrong else x)  # type: ignore[no-any-return]


def place_of(lines: list[str]) -> tuple[int, str] | None:
    records = read_records([Line(number, text) for number, text in enumerate(lines, 1)])
    return failure_place.failing_module(records.exceptions[0])


def failing(*args: Any, stages: Any = None) -> list[str]:
    network = Net()
    if stages is not None:
        stages.attach(network)
    try:
        network(*args)
    except Exception:
        return traceback.format_exc().splitlines()
    raise AssertionError("it did not fail")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((torch.tensor([1, 30]),), "module stem, operator embedding"),
        ((torch.tensor([1, 3]), True), "module blocks.*.norm, operator batch_norm"),
    ],
)
@pytest.mark.parametrize("recorded", [False, True])
def test_module_and_operator_of_a_real_failure(
    args: tuple[Any, ...], expected: str, recorded: bool, tmp_path: Path
) -> None:
    stages = StageHooks(ring_writer.Writer(tmp_path / "ring-0-0.bin", slots=4)) if recorded else None
    lines = failing(*args, stages=stages)
    assert not any("debug/recorder" in line for line in lines), "its hooks are not on the stack of a module"
    place = place_of(lines)
    assert place is not None
    assert place[1] == expected
    assert expected.rpartition(" ")[2] in lines[place[0] - 1]


def test_without_a_module_there_is_no_place() -> None:
    try:
        torch.zeros(2) + torch.zeros(3)
    except RuntimeError:
        assert place_of(traceback.format_exc().splitlines()) is None
    assert place_of(HEAD) is None


@pytest.mark.parametrize(
    ("before", "inside", "expected"),
    [
        (["    out = self.head(x)"], ["    return F.linear(x, w)"], "module head, operator linear"),
        (["    out = self.head(x)", "          ~~~~~~~~~^^^"], ["    raise ValueError('x')"], "module head"),
        (
            ["    x = self.act(self.bn(self.conv(x)))"],
            ["    return F.relu(x)"],
            "module ?, operator relu",
        ),  # Python 3.10
        (
            ["    x = self.act(self.bn(self.conv(x)))", "                 ^^^^^^^^^^^^^^^^^^^^^^"],
            ["    return F.batch_norm(x)"],
            "module bn, operator batch_norm",
        ),
        (["    x = self.layers[3](x)"], ["    return torch._C._nn.gelu(x)"], "module layers.3, operator gelu"),
        (["    x = self.layers[i](x)"], ["    return x @ y"], "module layers.*"),
        (["    x = self.module(*inputs, **kwargs)"], ["    return x @ y"], None),  # DataParallel
        (["    x = torch.relu(self.fc(x))"], ["    return x @ y"], "module fc"),
        (["    y = self(x)"], ["    return x @ y"], None),
        (["    return a(b(x))"], ["    return torch.cat(torch.split(x, 2))"], None),
    ],
)
def test_what_a_line_calls(before: list[str], inside: list[str], expected: str | None) -> None:
    lines = [*HEAD, '  File "net.py", line 4, in forward', *before, *IMPL, '  File "y.py", line 2, in forward', *inside]
    place = place_of(lines)
    assert (place and place[1]) == expected


def test_wrappers_are_no_part_of_a_name_and_windows_has_modules_too() -> None:
    lines = [*HEAD]
    for code in ("self.module(x)", "self._orig_mod(x)", "self.encoder(x)", "block(x)"):
        lines += ['  File "C:\\net\\model.py", line 4, in forward', f"    return {code}"]
        lines += [line.replace("/", "\\") for line in IMPL]
    lines += ['  File "C:\\net\\model.py", line 9, in forward', "    return torch.einsum('ij', x)"]
    assert place_of(lines) == (len(lines), "module encoder.*, operator einsum")


def test_a_path_without_names_is_left_out() -> None:
    inside = ['  File "/v/torch/_dynamo/eval_frame.py", line 4, in inner', "    return fn(*args)", *IMPL]
    lines = [*HEAD, *inside, *inside, '  File "<eval_with_key>.3", line 9, in forward', "    x = gather(y)"]
    assert place_of(lines) is None
    lines[-1] = "    return torch.gather(x, 1, y)"
    assert place_of(lines) == (len(lines), "module ?, operator gather")


def test_the_verdict_names_module_and_operator() -> None:
    log = "\n".join(["epoch 1", *failing(torch.tensor([1, 30]))]) + "\n"
    verdict = classify(Incident(status="failed", exit_code=1, texts={"log_tail.txt": log}))
    assert verdict.causes[0].id == "data.index_range"
    assert any(failure_place.module_text(line.text) for line in verdict.causes[0].evidence)
    assert "exit status 1 in module stem, operator embedding, called from " in sentence(verdict)


@pytest.mark.parametrize(
    ("error", "late"),
    [
        ("RuntimeError: CUDA error: an illegal memory access was encountered", True),
        ("torch.AcceleratorError: CUDA error: device-side assert triggered", True),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", True),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", True),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", False),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x16 and 12x3)", False),
    ],
)
def test_what_a_device_reports_surfaces_somewhere(error: str, late: bool) -> None:
    lines = [*HEAD, '  File "net.py", line 4, in forward', "    x = self.fc(x)", *IMPL]
    lines += ['  File "/v/torch/nn/modules/linear.py", line 9, in forward', "    return F.linear(x, w)", error]
    place = place_of(lines)
    assert place is not None
    assert place[1] == "module fc, operator linear" + " (where it surfaced)" * late
    assert failure_place.module_text(place[1])
    verdict = classify(Incident(status="failed", exit_code=1, texts={"log_tail.txt": "\n".join(lines) + "\n"}))
    assert any(line.text == place[1] for line in verdict.causes[0].evidence)


def test_what_a_record_puts_around_a_model_is_no_module() -> None:
    between = [
        '  File "/v/site-packages/ocrlab/debug/recorder/training_health/validation_scale.py", line 79, in called',
        "    return inner(*args, **kwargs)",
        '  File "/v/site-packages/ocrlab/debug/recorder/stage_hooks.py", line 135, in surrounded',
        "    output = inner(*args, **kwargs)",
    ]
    lines = ['  File "train.py", line 9, in <module>', "    loss = criterion(out, y)", *IMPL[:2], *between, *IMPL[2:]]
    lines += [
        '  File "losses.py", line 5, in forward',
        "    return (h - self.centers[y]).mean()",
        "IndexError: index 5",
    ]
    assert place_of([HEAD[0], *lines]) == (13, "module criterion")


def test_a_loop_variable_is_no_module_path() -> None:
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(5, 5)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stack = Stack()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.stack(x)  # type: ignore[no-any-return]

    for network, path in ((Outer(), "module stack.*, operator linear"), (Stack(), "module network.*, operator linear")):
        try:
            network(torch.rand(2, 4))
        except RuntimeError as error:
            lines = "".join(traceback.format_exception(error)).splitlines()
        place = place_of(lines)
        assert place is not None
        assert place[1] == path
