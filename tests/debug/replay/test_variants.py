"""Which cells of the matrix follow from what the first one has shown, and whether the faults of two cells are one."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ocrlab.debug.flight_record.ring_format import Step
from ocrlab.debug.replay import fault_match, replay_summary, variants
from ocrlab.debug.replay import replay_job as replaying
from ocrlab.debug.replay.trial import TrialResult

ILLEGAL: dict[str, Any] = {"kind": "exception", "phase": "forward", "path": "body", "step": 3, "micro": 3}
ILLEGAL |= {"exception": "RuntimeError: CUDA error: an illegal memory access was encountered"}
CONV = {**ILLEGAL, "op": "aten::convolution"}


STORED = {"kind": "nonfinite", "tensor": "input", "phase": "validation", "micro": 4, "samples": None}


def names(fault: dict[str, Any], on_gpu: bool = False) -> list[str]:
    return [cell.name for cell in variants.contrasts(fault, on_gpu)]


def test_what_was_wrong_before_anything_was_computed_needs_no_other_cell() -> None:
    assert names({"kind": "target"}) == names({"kind": "nonfinite", "before": True, "inputs": ["(2,) bf16"]}) == []
    assert names({"kind": "data"}, on_gpu=True) == []


def test_a_crash_in_an_operator_of_a_library_asks_for_less_of_it_and_one_after_it_for_nothing() -> None:
    assert names({"kind": "crash", "op": "aten::convolution"}) == ["mkldnn off", "one thread"]
    assert names({"kind": "crash", "after": "aten::convolution"}) == []


def test_a_bad_value_with_its_operator_asks_for_no_cell_about_races() -> None:
    nan = {**CONV, "kind": "nonfinite", "inputs": ["(4, 8) bf16 cuda:0"], "exception": "FloatingPointError: nan"}
    assert names(nan, on_gpu=True) == ["fp32", "on the CPU", "cuDNN off"]
    assert not variants.says(variants.FP32, nan), "the program casts itself"
    unplaced = {"kind": "nonfinite", "tensor": "loss", "exception": "FloatingPointError: nan"}
    assert names(unplaced, on_gpu=True) == ["on the CPU", "cuDNN off", "stream sanitizer"]
    assert len(asked(nan, {})) == 4
    silent = {"kind": "nonfinite", "tensor": "loss"}
    assert not variants.says(variants.SANITIZER, None, silent), (
        "nothing inspects values there, and no exception reports one"
    )
    assert not variants.settles(variants.SANITIZER, silent, None) and variants.settles(variants.FP32, silent, None)
    assert variants.says(variants.SANITIZER, None, unplaced) and variants.settles(variants.SANITIZER, unplaced, None)


def test_a_step_that_began_in_a_dead_context_asks_for_the_steps_before_it() -> None:
    dead = {**ILLEGAL, "phase": variants.BEFORE_STEP, "path": None}
    index = {"kind": "index", "step": 1, "micro": 1, "path": "table", "op": "aten::embedding", "swallowed": True}
    results = asked(dead, {"steps before": index})
    assert [result.variant.name for result in results] == ["CUDA_LAUNCH_BLOCKING=1", "steps before"]
    assert replay_summary.placed_fault(results) == index


def test_a_gpu_has_the_whole_matrix() -> None:
    fault = {"kind": "exception", "op": "aten::index", "inputs": ["(4, 8) fp16 cuda:0"]}
    assert names(fault, on_gpu=True) == ["fp32", "on the CPU", "cuDNN off", "stream sanitizer"]


def test_that_a_kernel_does_not_die_on_the_cpu_settles_nothing_but_a_value_that_it_refuses_does() -> None:
    assert not variants.settles(variants.CPU, ILLEGAL, None) and variants.settles(variants.CUDNN, ILLEGAL, None)
    assert not variants.settles(variants.CUDNN, ILLEGAL, ILLEGAL)
    assert variants.settles(variants.CPU, {"kind": "exception", "exception": "ValueError: 3"}, None)
    asserted = {"kind": "exception", "exception": "RuntimeError: CUDA error: device-side assert triggered"}
    assert variants.settles(variants.CPU, asserted, {"kind": "target", "value": "9"})
    assert not variants.settles(variants.CPU, asserted, {"kind": "exception", "exception": "ValueError: 3"})
    race = {"kind": "exception", "exception": "torch.cuda._sanitizer.CUDASanitizerErrors: detected 1 errors"}
    assert variants.settles(variants.SANITIZER, ILLEGAL, race)


def test_what_a_slow_cell_or_a_program_that_wants_a_gpu_does_says_nothing() -> None:
    hang = {"kind": "hang", "path": "a"}
    assert not variants.says(variants.CPU, hang, ILLEGAL) and not variants.says(variants.SANITIZER, hang, ILLEGAL)
    assert variants.says(variants.CPU, hang, hang) and variants.says(variants.CUDNN, hang, ILLEGAL)
    assert not variants.says(
        variants.CPU, {"kind": "exception", "exception": "RuntimeError: No CUDA GPUs are available"}
    )


def test_weights_that_were_bad_before_ask_for_the_steps_before() -> None:
    assert variants.spoilt({"kind": "nonfinite", "before": True, "tensor": "weight head.weight"})
    assert not variants.spoilt({"kind": "nonfinite", "before": True, "tensor": "input batch[0]"})
    assert variants.spoilt({"kind": "exception", "phase": variants.BEFORE_STEP})
    assert not variants.earlier(3, 1.0).environment and variants.earlier(3, 1.0, on_gpu=True).environment


@pytest.mark.parametrize(("fault", "count", "wanted"), [
    ({"kind": "crash", "samples": None}, 4, True),
    ({"kind": "crash", "samples": None}, 1, False),
    ({"kind": "exception", "samples": [2]}, 4, False),
    ({"kind": "nonfinite", "samples": [0, 1, 2, 3], "tensor": "output aten::log"}, 4, True),
    ({"kind": "nonfinite", "samples": None, "tensor": "weight head.weight"}, 4, False),
    ({"kind": "target", "samples": None}, 4, False),
    ({"kind": "data", "samples": None}, 4, False),
    ({"kind": "exception", "phase": "validation", "samples": None}, 4, False),
    ({"kind": "exception", "phase": "validation", "micro": 5, "samples": None}, 4, True),
    ({"kind": "exception", "phase": variants.AFTER_LOOP}, 8, False),
    ({"kind": "hang", "phase": "data"}, 8, False),
    ({"kind": "target", "samples": [1], "phase": "loss"}, 8, False),
    ({"kind": "target", "samples": [1], "phase": "loss", "guessed": True}, 8, True),
    ({"kind": "nonfinite", "samples": None, "everyone": 1e17}, 8, False),
    (STORED, 8, False),
    ({**STORED, "tensor": "output aten::div"}, 8, True),
])  # fmt: skip
def test_samples_are_tried_alone_where_the_fault_does_not_show_whose_it_is(fault, count, wanted):
    assert variants.wants_alone(fault, count, on_gpu=False) is wanted
    assert not variants.wants_alone(fault, count, on_gpu=True)


def test_a_program_that_fails_where_the_run_had_passed_has_another_fault() -> None:
    steps = [Step(number // 2, number) for number in range(8)]
    fault = {"kind": "exception", "step": 1}
    assert variants.was_passed(fault, steps) and not variants.was_passed({**fault, "swallowed": True}, steps)
    assert not variants.was_passed({**fault, "step": 3}, steps) and not variants.was_passed(
        {**fault, "kind": "nonfinite"}, steps
    )
    assert variants.was_passed({**fault, "micro": 6}, steps) and not variants.was_passed({**fault, "micro": 7}, steps)
    assert not variants.was_passed({"kind": "exception"}, steps)
    nan = {"kind": "nonfinite", "step": 1, "micro": 3}
    assert variants.was_passed(nan, steps, 3) and not variants.was_passed(nan, steps, 7), "noticed at the end"


def asked(shown: Mapping[str, Any], well: Mapping[str, Any]) -> list[TrialResult]:
    """Return what a replay has asked about a fault that all cells show but those named in `well`, which tell what they
    show instead.
    """
    about: Any = SimpleNamespace(
        number=3, seconds=0.1, on_gpu=True, began_earlier=False, ended="failure", step=object()
    )
    about.flight, about.from_start = SimpleNamespace(steps=[]), False
    matrix = replaying._Matrix(about, Path(), 0.0, print)

    def run(variant: variants.Variant) -> TrialResult:
        matrix.results.append(TrialResult(variant, well.get(variant.name, dict(shown)), count=2))
        return matrix.results[-1]

    matrix.run = run  # type: ignore[method-assign]
    replaying._investigate(about, matrix)
    return matrix.results


def test_the_matrix_goes_on_behind_the_cpu_until_a_cell_of_the_gpu_answers() -> None:
    results = asked(CONV, {"on the CPU": None, "cuDNN off": None})
    assert [result.variant.name for result in results] == ["CUDA_LAUNCH_BLOCKING=1", "on the CPU", "cuDNN off"]
    assert replay_summary._apart(results) == ["does not happen on the CPU and without cuDNN"]


def test_all_cells_are_asked_about_a_kernel_that_dies_in_each_of_them() -> None:
    results = asked(ILLEGAL, {"on the CPU": None})
    assert [result.variant for result in results[1:]] == [variants.CPU, variants.CUDNN, variants.SANITIZER]
    gone, stays = replay_summary._apart(results)
    assert gone == "does not happen on the CPU"
    assert stays == "still happens without cuDNN and under the stream sanitizer"


def test_the_value_that_an_assert_refuses_is_reported_by_the_cpu_and_nothing_more_is_asked() -> None:
    asserted = {**ILLEGAL, "exception": "RuntimeError: CUDA error: device-side assert triggered"}
    target = {"kind": "target", "tensor": "target batch[1]", "value": "9", "index": [3], "allowed": "0 to 4", "step": 2}
    results = asked(asserted, {"on the CPU": target})
    assert [result.variant for result in results[1:]] == [variants.CPU]
    assert replay_summary.decided(results) == asserted, "what another device shows at an earlier step is not the run's"
    assert replay_summary._apart(results) == [
        "fails in another way on the CPU: target batch[1] is 9 at [3], allowed 0 to 4"
    ]


MESSAGE = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be"


def raised(text: str, **more: Any) -> dict[str, Any]:
    return {"kind": "exception", "exception": text, "path": "body.0", **more}


@pytest.mark.parametrize(("text", "kind"), [
    (MESSAGE, "illegal address"),
    ("RuntimeError: CUDA error: misaligned address", "misaligned address"),
    ("RuntimeError: CUDA error: an illegal instruction was encountered", "illegal instruction"),
    ("RuntimeError: CUDA error: device-side assert triggered", "device-side assert"),
    ("RuntimeError: CUDA error: unspecified launch failure", "launch failure"),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "cuDNN status"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`", "cuBLAS status"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", ""),
    ("ValueError: Expected input batch_size (4) to match target batch_size (3).", ""),
])  # fmt: skip
def test_how_a_kernel_ended_is_read_off_the_message(text: str, kind: str) -> None:
    assert fault_match.of_cuda(raised(text)) == kind


def test_an_error_of_cuda_is_compared_by_how_the_kernel_ended_and_others_by_their_type() -> None:
    illegal = raised(MESSAGE)
    assert fault_match.same(illegal, raised("RuntimeError: CUDA error: an illegal memory access was encountered"))
    assert not fault_match.same(illegal, raised("torch.AcceleratorError: CUDA error: misaligned address"))
    assert not fault_match.same(illegal, raised("torch.AcceleratorError: no kernel image"))
    assert fault_match.same(raised("ValueError: 3 of 4"), raised("ValueError: 4 of 4"))
    assert not fault_match.same(raised("ValueError: 3"), raised("KeyError: 3"))


def test_a_fault_in_another_module_differs_where_both_variants_name_it() -> None:
    fault, other = raised(MESSAGE), raised(MESSAGE, path="body")
    assert not fault_match.same(fault, other) and fault_match.same(fault, other, placed=False)
    bad = {"kind": "nonfinite", "path": "a", "exception": "AssertionError: nan"}
    assert fault_match.same(bad, {"kind": "nonfinite", "path": "_orig_mod.a"})
    assert not fault_match.same(bad, {**bad, "path": "b"}) and not fault_match.same(bad, {**bad, "kind": "crash"})
    assert fault_match.same({"kind": "hang", "path": "a.b"}, {"kind": "hang", "path": "a"})
    assert not fault_match.same({"kind": "hang", "path": "ab"}, {"kind": "hang", "path": "a"})


def test_a_crash_of_another_signal_is_another_crash() -> None:
    assert not fault_match.same({"kind": "crash", "signal": "SIGSEGV"}, {"kind": "crash", "signal": "SIGKILL"})


@pytest.mark.parametrize("text", [
    "RuntimeError: No CUDA GPUs are available",
    "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
    "AssertionError: Torch not compiled with CUDA enabled",
    "NotImplementedError: Could not run 'mine::scan' with arguments from the 'CPU' backend.",
    "RuntimeError: x must be a CUDA tensor",
])  # fmt: skip
def test_a_program_that_asks_for_a_gpu_says_nothing_on_the_cpu(text: str) -> None:
    assert fault_match.wants_gpu(raised(text))
    assert not fault_match.wants_gpu(raised(MESSAGE)) and not fault_match.wants_gpu(raised("IndexError: Target 9"))
