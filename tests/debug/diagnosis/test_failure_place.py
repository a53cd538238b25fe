"""Where in the program's own code it happened."""

import traceback
from typing import Any

import pytest
import torch
from torch import nn

from ocrlab.debug.diagnosis import failure_place
from ocrlab.debug.diagnosis.classify import classify
from ocrlab.debug.diagnosis.log_records import DURING, Line, read_records
from ocrlab.debug.diagnosis.log_text import clean_log
from ocrlab.debug.diagnosis.verdict_files import sentence
from ocrlab.debug.flight_record import ring_writer
from ocrlab.debug.recorder.stage_hooks import StageHooks
from ocrlab.records import Cause, Evidence, Incident

TRACED = "Traceback (most recent call last):"
LOG = """step 1
Traceback (most recent call last):
  File "/data/x/train.py", line 30, in main
    read()
  File "/data/x/__init__.py", line 7, in read
    torch.load("a")
    ^^^^^^^^^^^^^^^
  File "/data/x/lib/python3.11/site-packages/torch/serialization.py", line 9, in load
    raise EOFError
EOFError
"""


def test_the_innermost_own_frame_is_added_to_the_exception() -> None:
    cause = Cause("ckpt.corrupt", 0.8, [Evidence("log_tail.txt", 10, "EOFError")])
    lines = failure_place.add_place(cause, [clean_log("log_tail.txt", LOG)]).evidence
    expected = [(10, None), (5, "read (x/__init__.py:7)")]
    assert [(line.line, failure_place.own_frame(line.text)) for line in lines] == expected


def test_the_cell_is_the_users_code_and_what_runs_it_is_not() -> None:
    runs = '  File "/somewhere/ocrlab/notebook/child_main.py", line 178 in _run'
    assert failure_place.own_frame(runs) is None
    assert failure_place.own_frame('  File "<isolated cell>", line 2 in <module>') == "<module> (<isolated cell>:2)"


def test_an_exception_of_libraries_stands_where_its_cause_does() -> None:
    chain = (
        'Traceback (most recent call last):\n  File "/p/lines.py", line 6, in read\n    next(lines)\nStopIteration\n\n'
        "The above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n"
        '  File "/v/site-packages/torch/utils/data/_utils/fetch.py", line 35, in fetch\n    next(it)\n'
        "RuntimeError: generator raised StopIteration\n"
    )
    first = Evidence("log_tail.txt", 11, "RuntimeError: generator raised StopIteration")
    lines = failure_place.add_place(Cause("data.sample", 0.8, [first]), [clean_log("log_tail.txt", chain)]).evidence
    assert [line.line for line in lines] == [11, 2]


def test_where_the_main_process_was_when_a_worker_died_is_no_place():
    handler = '  File "/v/site-packages/torch/utils/data/_utils/signal_handling.py", line 73, in handler'
    died = "RuntimeError: DataLoader worker (pid 38) is killed by signal: Segmentation fault."
    for before in ((), (TRACED, '  File "/p/fit.py", line 3, in read', "KeyError: 'a'", "", DURING, "")):
        log = "\n".join((*before, TRACED, '  File "/p/losses.py", line 12, in dice', "    return x", handler, died))
        verdict = classify(Incident("failed", 1, texts={"log_tail.txt": log}))
        assert verdict.causes[0].id == "loader.worker_crash"
        assert [line.text for line in verdict.causes[0].evidence] == [died]
        assert "dice" not in sentence(verdict)


ABORT = """step 11
terminate called after throwing an instance of 'std::runtime_error'
  what():  bad record header
Fatal Python error: Aborted

{whose} 0x00007f6498469b80 (most recent call first):
  File "/p/feed.py", line 5 in next_batch
  File "/p/feed.py", line 8 in <module>
"""


@pytest.mark.parametrize(("whose", "last"), [
    ("Current thread", 'File "/p/feed.py", line 5 in next_batch'),
    ("Thread", "the main thread was in next_batch (feed.py:5)"),
], ids=["a thread of Python's", "a thread of C++'s"])  # fmt: skip
def test_the_last_words_before_abort_come_first(whose: str, last: str) -> None:
    log = ABORT.format(whose=whose)
    verdict = classify(Incident("killed", None, "SIGABRT", texts={"log_tail.txt": log}))
    assert verdict.causes[0].id == "native.abort"
    lines = [line.text for line in verdict.causes[0].evidence]
    assert (lines[0], lines[-1]) == ("what():  bad record header", last)
    without = log.replace("what():  bad record header", "step 12").replace("terminate called", "it is")
    quiet = classify(Incident("killed", None, "SIGABRT", texts={"log_tail.txt": without}))
    assert quiet.causes[0].evidence[0].text == "Fatal Python error: Aborted"


IMPL = [
    '  File "/v/site-packages/torch/nn/modules/module.py", line 1500, in _wrapped_call_impl',
    "    return self._call_impl(*args, **kwargs)",
    '  File "/v/site-packages/torch/nn/modules/module.py", line 1511, in _call_impl',
    "    return forward_call(*args, **kwargs)",
]
CALLED = ["Traceback (most recent call last):", '  File "train.py", line 9, in <module>', "    loss = step(net, batch)"]


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


@pytest.mark.parametrize(("args", "expected"), [
    ((torch.tensor([1, 30]),), "module stem, operator embedding"),
    ((torch.tensor([1, 3]), True), "module blocks.*.norm, operator batch_norm"),
])  # fmt: skip
@pytest.mark.parametrize("recorded", [False, True])
def test_module_and_operator_of_a_real_failure(args, expected, recorded, tmp_path):
    stages = StageHooks(ring_writer.Writer(tmp_path / "ring-0-0.bin", slots=4)) if recorded else None
    lines = failing(*args, stages=stages)
    assert not any("debug/recorder" in line for line in lines), "its hooks are not on the stack of a module"
    place = place_of(lines)
    assert place is not None
    assert place[1] == expected
    assert expected.rpartition(" ")[2] in lines[place[0] - 1]


@pytest.mark.parametrize(("before", "inside", "expected"), [
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
])  # fmt: skip
def test_what_a_line_calls(before: list[str], inside: list[str], expected: str | None) -> None:
    lines = [
        *CALLED, '  File "net.py", line 4, in forward', *before, *IMPL,
        '  File "y.py", line 2, in forward', *inside,
    ]  # fmt: skip
    place = place_of(lines)
    assert (place and place[1]) == expected


def test_wrappers_are_no_part_of_a_name_and_windows_has_modules_too() -> None:
    lines = [*CALLED]
    for code in ("self.module(x)", "self._orig_mod(x)", "self.encoder(x)", "block(x)"):
        lines += ['  File "C:\\net\\model.py", line 4, in forward', f"    return {code}"]
        lines += [line.replace("/", "\\") for line in IMPL]
    lines += ['  File "C:\\net\\model.py", line 9, in forward', "    return torch.einsum('ij', x)"]
    assert place_of(lines) == (len(lines), "module encoder.*, operator einsum")


@pytest.mark.parametrize(("error", "late"), [
    ("RuntimeError: CUDA error: an illegal memory access was encountered", True),
    ("torch.AcceleratorError: CUDA error: device-side assert triggered", True),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", True),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", True),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", False),
    ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x16 and 12x3)", False),
])  # fmt: skip
def test_what_a_device_reports_surfaces_somewhere(error: str, late: bool) -> None:
    lines = [*CALLED, '  File "net.py", line 4, in forward', "    x = self.fc(x)", *IMPL]
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
    assert place_of([CALLED[0], *lines]) == (13, "module criterion")


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
