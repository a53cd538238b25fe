"""A CUDA context that dies in a traced step, with torch's CUDA calls mocked: where that was is found by asking the
device, and nothing is read from it afterwards.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ocrlab.debug.replay import variants
from ocrlab.debug.replay.tracing import cuda_context, fault_report, nonfinite_tracker, step_trace
from ocrlab.debug.replay.tracing.tracer import Tracer
from ocrlab.run_folder import fail_safe
from tests.debug.replay.tracing.traced_step import traced

ILLEGAL = "CUDA error: an illegal memory access was encountered"
ASSERT = "CUDA error: device-side assert triggered"
CUDNN = "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"
NAMES = ["a.png", "b.png"]


class Device:
    """A device that says what a kernel did when it is next asked, once: more than that may not be asked of it."""

    spoilt = reported = is_early = False
    text = ILLEGAL

    def is_capturing(self) -> bool:
        """Return whether a graph is captured, or what a kernel did: CUDA says that at any call."""
        if self.spoilt and self.is_early:
            self.synchronize()
        return False

    def synchronize(self) -> None:
        """Wait for all kernels."""
        assert not self.reported, "a dead context was asked"
        if self.spoilt:
            self.reported = True
            raise torch.AcceleratorError(self.text)


DEVICE = Device()


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    global DEVICE
    DEVICE = Device()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", DEVICE.is_capturing)
    monkeypatch.setattr(torch.cuda, "synchronize", DEVICE.synchronize)
    original = nonfinite_tracker.bad

    def bad(tensor: Tensor) -> bool:
        if DEVICE.spoilt:
            DEVICE.reported = True
            raise torch.AcceleratorError(DEVICE.text)
        return original(tensor)

    for module in (nonfinite_tracker, fault_report, step_trace):
        monkeypatch.setattr(module, "bad", bad)


class Kernel(torch.autograd.Function):
    """A user's operator, whose kernel is launched without a check."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clone()
        DEVICE.spoilt = True
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


@torch.library.custom_op("ocrlab_test::mix", mutates_args=())
def mix(x: Tensor, fails: bool, kills: bool) -> Tensor:
    """An operator of a library, which says in its own words that the context is dead, or that only it has failed."""
    DEVICE.spoilt |= kills
    if DEVICE.spoilt or fails:
        raise RuntimeError(CUDNN)
    return x.clone()


class Fusion(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "function":
            x = Kernel.apply(x)
        elif self.way == "launch":
            DEVICE.spoilt = True
        elif self.way == "nan":
            x = x * float("nan")
        return mix(x, self.way in ("fails", "nan"), self.way == "library")


def failed(out: Path, way: str) -> dict[str, Any]:
    """Return the fault of a step that a library's error ends."""
    net = nn.ModuleDict({"stem": nn.Linear(4, 4), "fusion": Fusion(way)})
    job = {"out": str(out), "last_step": 0, "cell": {"trace": True}}
    with pytest.raises(RuntimeError, match="CUDNN_STATUS"), traced(net, job) as trace:
        trace.begin(torch.ones(2, 4), NAMES, 0, 0)
        net["fusion"](net["stem"](torch.ones(2, 4)))
    assert not (out / fail_safe.TRACER_NAME).exists(), "the tracer read from a dead context"
    return json.loads((out / "trace.json").read_text())["fault"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("early", [False, True])
def test_a_kernel_that_nobody_checked_is_placed_in_its_function_and_not_in_the_operator_that_notices(tmp_path, early):
    DEVICE.is_early = early  # as with CUDA_LAUNCH_BLOCKING=1
    fault = failed(tmp_path, "function")
    assert (fault["kind"], fault["path"], fault["op"], fault["function"]) == ("exception", "fusion", "Kernel", "Kernel")
    assert fault["exception"].startswith(f"torch.AcceleratorError: {ILLEGAL}, surfaced as RuntimeError: {CUDNN}")
    assert fault["line"].endswith(" forward") and fault["line"].startswith(__file__)


@pytest.mark.parametrize("early", [False, True])
def test_a_launch_between_two_operators_is_placed_in_its_module(tmp_path: Path, early: bool) -> None:
    DEVICE.is_early = early
    fault = failed(tmp_path, "launch")
    assert fault["path"] == "fusion" and not fault.get("op") and "illegal memory access" in fault["exception"]


def test_an_operator_of_a_library_that_kills_the_context_is_placed(tmp_path: Path) -> None:
    fault = failed(tmp_path, "library")
    assert (fault["path"], fault["op"]) == ("fusion", "ocrlab_test::mix") and fault["inputs"] == ["(2, 4) fp32"]
    assert "illegal memory access" in fault["exception"] and "surfaced as" in fault["exception"]


def test_an_error_of_a_library_that_the_context_survives_is_what_it_says(tmp_path: Path) -> None:
    fault = failed(tmp_path, "fails")
    assert (fault["op"], fault["exception"]) == ("ocrlab_test::mix", f"RuntimeError: {CUDNN}")
    assert failed(tmp_path / "nan", "nan")["kind"] == "nonfinite", "its inputs can be read"


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4)

    def forward(self, source: Tensor) -> Tensor:
        return self.table(source)


def test_an_error_that_the_program_swallows_is_the_fault_of_the_step_that_had_it(tmp_path, monkeypatch):
    net, source = Lookup(), torch.tensor([3, 999_999])
    DEVICE.text = ASSERT
    trace = Tracer(net, {"out": str(tmp_path), "last_step": 2, "cell": {"trace": True}})
    for number in range(2):
        batch = {"source": source if number else source % 8}
        trace.begin(batch, NAMES, number, number)
        try:
            net(batch["source"]).sum().backward()
        except IndexError:  # on a card it is an assert, after which each call fails
            assert trace.step is not None and trace.step.outside is not None
        trace.end(None)
    trace.close()
    assert not (tmp_path / "trace.json").exists(), "the context has survived it: it is not a fault of the run"

    trace = Tracer(net, {"out": str(tmp_path), "last_step": 2, "cell": {"trace": True}})
    trace.begin({"source": source}, NAMES, 1, 1)
    original = torch.cuda.synchronize

    def synchronize() -> None:
        DEVICE.spoilt = trace.step is not None and trace.step.outside is not None
        original()

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    with pytest.raises(IndexError):
        net(source)
    trace.end(None)
    trace.begin({"source": source % 8}, NAMES, 2, 2)
    trace.failed(torch.AcceleratorError(ASSERT))
    trace.close()
    record = json.loads((tmp_path / "trace.json").read_text())
    fault = record["fault"]
    assert (record["step"], fault["step"], fault["kind"], fault["path"]) == (1, 1, "index", "table")
    assert (fault["op"], fault["value"], fault["allowed"]) == ("aten::embedding", "999999", "0 to 7")
    assert fault["names"] == ["b.png"] and fault["swallowed"] and ASSERT in fault["exception"]
    assert not (tmp_path / fail_safe.TRACER_NAME).exists()


def test_a_step_that_begins_in_a_dead_context_has_the_fault_of_one_before_it(tmp_path: Path) -> None:
    DEVICE.spoilt = True
    net = nn.Linear(4, 4)
    with (
        pytest.raises(torch.AcceleratorError),
        traced(net, {"out": str(tmp_path), "last_step": 5, "cell": {"trace": True}}) as trace,
    ):
        trace.begin(torch.ones(2, 4), NAMES, 5, 5)
        assert trace.step is None
        raise torch.AcceleratorError(ILLEGAL)
    fault = json.loads((tmp_path / "trace.json").read_text())["fault"]
    assert (fault["step"], fault["phase"]) == (5, variants.BEFORE_STEP) and ILLEGAL in fault["exception"]
    assert variants.spoilt(fault), "the steps before are looked at"
    assert not (tmp_path / fail_safe.TRACER_NAME).exists()


def test_a_kernel_of_the_end_of_a_step_is_waited_for(tmp_path: Path) -> None:
    net = nn.Linear(4, 4)
    with traced(net, {"out": str(tmp_path), "last_step": 0, "cell": {"trace": True}}) as trace:
        trace.begin(torch.ones(2, 4), NAMES, 0, 0)
        net(torch.ones(2, 4)).sum().backward()
        DEVICE.spoilt = True
        trace.end(None)
    fault = json.loads((tmp_path / "trace.json").read_text())["fault"]
    assert fault["kind"] == "exception" and ILLEGAL in fault["exception"] and not fault.get("op")


@pytest.mark.parametrize(("text", "named"), [
    (ILLEGAL, True),
    (ASSERT, True),
    ("CUDA error: misaligned address", True),
    ("Triton Error [CUDA]: CUDA_ERROR_INVALID_VALUE", False),
    ("CUDA error: invalid configuration argument", False),
    (CUDNN, False),
    ("CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasCreate(handle)`", False),
    ("cuFFT error: CUFFT_EXEC_FAILED", False),
    ("NCCL error: unhandled cuda error", False),
    ("CUDA out of memory. Tried to allocate 2 GiB", False),
])  # fmt: skip
def test_only_the_end_of_a_kernel_proves_by_itself_that_the_context_is_dead(text: str, named: bool) -> None:
    error = RuntimeError(text)
    assert (cuda_context.cause_of_death(error) is error) is named
    outer = ValueError("the step failed")
    outer.__cause__ = error
    assert (cuda_context.cause_of_death(outer) is error) is named
