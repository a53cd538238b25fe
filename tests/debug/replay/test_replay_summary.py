"""The words of a replay: one sentence that names place, values, samples and what makes the fault go away."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ocrlab.debug.flight_record.ring_format import Step
from ocrlab.debug.flight_record.ring_reader import Flight
from ocrlab.debug.replay import replay_summary, variants
from ocrlab.debug.replay.recorded_step import RecordedStep
from ocrlab.debug.replay.trial import TrialResult

CONV: dict[str, Any] = {
    "step": 212, "phase": "forward", "path": "decoder.fusion.0", "module": "Conv2d 256->64",
    "op": "aten::convolution", "inputs": ["(4, 256, 160, 160) bf16"],
}  # fmt: skip


def subject(ended: str = "failure") -> RecordedStep:
    flown = Flight(Path("ring"), 1, 0, 0, 0.0, steps=[Step(212, 212, samples=["a.png", "page_031.png"])])
    return RecordedStep(Path("runs/x"), flown, {}, 212, flown.steps[0], None, ended)


def outcome(fault: dict[str, Any] | None, cell: variants.Variant = variants.TRACED, **more: Any) -> TrialResult:
    return TrialResult(cell, fault, count=2, **more)


def step(number: int, loss: float, equal: bool | None = True) -> dict[str, Any]:
    return {"number": number, "loss": loss, "recorded": loss if equal else loss + 1, "equal": equal}


def test_the_sentence_of_an_overflow_that_goes_away_in_fp32() -> None:
    fault = {**CONV, "kind": "nonfinite", "tensor": "output aten::convolution", "value": "+Inf", "index": [1, 0, 2, 2]}
    outcomes = [outcome({**fault, "names": ["page_031.png"], "by": "overflow"}), outcome(None, variants.FP32)]
    assert replay_summary.sentence(subject(), outcomes) == (
        "first fault at step 212, forward, `decoder.fusion.0` (Conv2d 256->64), op `aten::convolution`, "
        "input (4, 256, 160, 160) bf16; +Inf in output aten::convolution at [1, 0, 2, 2], overflow; "
        "sample `page_031.png`; does not happen in fp32."
    )
    assert replay_summary.record(subject(), outcomes, "", 1.0)["reproduced"] is True
    assert [row[0] for row in replay_summary.rows(outcomes)] == ["run", "traced", "fp32"]


TARGET = {"kind": "target", "step": 3, "phase": "loss", "op": "aten::nll_loss2d_forward", "line": "train.py:9 loss"}
TARGET |= {"tensor": "target batch[1]", "value": "9", "pixel": [3, 7], "allowed": "0 to 4", "names": ["b.png"]}
SHAPE = {"kind": "exception", "exception": "RuntimeError: shape mismatch", "sources": ["(2, 3) fp32 from stem"]}
COMPILED = {"kind": "nonfinite", "phase": "forward", "path": "_orig_mod.front", "module": "LogMel", "tensor": "output"}
NO_BATCH = {"kind": "data", "step": 3, "phase": "data", "exception": "ValueError: empty", "batch": "batch of 4, 9"}
CHANGED = {"kind": "exception", "phase": "backward", "changed": f"`add_` at {Path.cwd()}/gate.py:10 forward"}


@pytest.mark.parametrize(("fault", "words"), [
    (TARGET, "loss, `train.py:9 loss`, op `aten::nll_loss2d_forward`"),
    (TARGET, "target batch[1] is 9 at pixel (3, 7), allowed 0 to 4; sample `b.png`."),
    ({**CONV, "kind": "hang", "surfaced": "train.py:7 wait"}, "it never returned, in `train.py:7 wait`"),
    ({**CONV, **SHAPE}, "RuntimeError: shape mismatch; got (2, 3) fp32 from stem"),
    (COMPILED, "forward, `front` (LogMel); NaN in output"),
    (NO_BATCH, "first fault at step 3, data; ValueError: empty; batch of 4, 9."),
    (CHANGED, "; changed in place by `add_` at gate.py:10 forward"),
])  # fmt: skip
def test_a_fault_is_reported_with_its_place_and_values(fault: dict[str, Any], words: str) -> None:
    assert words in replay_summary.sentence(subject(), [outcome(fault)])


def test_a_sample_that_crashes_by_itself_is_named_and_the_rest_goes_well() -> None:
    tried: list[dict[str, Any]] = [
        {"samples": [0], "names": ["a.png"], "same": False, "well": True},
        {"samples": [1], "names": ["b.png"], "same": True, "well": False},
        {"samples": [2], "names": ["c.png"], "same": False, "well": True},
        {"samples": [0, 2], "names": ["a.png", "c.png"], "same": False, "well": True},
    ]
    crash = outcome({**CONV, "kind": "crash", "signal": "SIGSEGV", "samples": None, "from_batch": True})
    alone = TrialResult(variants.per_sample(6), per_sample=tried, count=3)
    sentence = replay_summary.sentence(subject(), [crash, alone])
    assert sentence.endswith("killed by SIGSEGV; sample `b.png`, does not happen without it.")
    assert crash.fault is not None and replay_summary.name_samples(crash.fault, alone)
    assert (crash.fault["samples"], crash.fault["names"]) == ([1], ["b.png"])
    crash.fault |= {"samples": None, "names": None}
    every = TrialResult(
        variants.per_sample(6),
        per_sample=[{**agreement, "same": True, "well": False} for agreement in tried[:2]],
        count=2,
    )
    assert "every sample of the batch does it alone" in replay_summary.sentence(subject(), [crash, every])
    none = TrialResult(variants.per_sample(6), per_sample=tried[:1], count=3)
    assert "no sample of the batch does it alone" in replay_summary.sentence(subject(), [crash, none])


def test_a_sample_that_needs_company_is_identified_by_leaving_it_out() -> None:
    singles = [{"samples": [i], "names": [f"{i}.png"], "same": False, "well": True} for i in range(3)]
    pairs = [
        {"samples": [i for i in range(3) if i != out], "names": [], "same": out != 1, "well": out == 1}
        for out in range(3)
    ]
    outcomes = TrialResult(variants.per_sample(6), per_sample=singles + pairs, count=3)
    assert replay_summary.culprits(outcomes) == (["1.png"], "does not happen without it, but needs other samples too")


@pytest.mark.parametrize("kind", ["exception", "crash", "nonfinite"])
def test_the_only_sample_of_a_batch_is_named(kind: str) -> None:
    fault: dict[str, Any] = {**CONV, "kind": kind, "samples": None}
    assert not replay_summary.name_samples(fault, TrialResult(variants.TRACED, fault, count=1, names=["only.png"]))
    assert (fault["samples"], fault["names"]) == ([0], ["only.png"])


def test_a_fault_of_an_earlier_step_comes_first() -> None:
    late = {**CONV, "kind": "nonfinite", "tensor": "weight a.weight", "value": "NaN", "before": True}
    early = {
        **CONV, "step": 211, "kind": "nonfinite", "phase": "backward", "tensor": "output aten::mul",
        "value": "NaN",
    }  # fmt: skip
    sentence = replay_summary.sentence(
        subject(), [outcome(late), outcome(early, variants.earlier(212, 1.0)), outcome(None, variants.FP32)]
    )
    assert sentence.startswith("first fault at step 211, backward") and sentence.endswith("; does not happen in fp32.")


@pytest.mark.parametrize(("ended", "steps", "wanted"), [
    (
        "failure",
        [step(211, 1.0), step(212, 2.0)],
        "could not be reproduced: step 212 ran 1 time, no fault, loss equal",
    ),
    (
        "success",
        [step(212, 2.0)],
        "step 212 was run again 1 time: no fault, loss equal bit for bit (2.0 at step 212).",
    ),
    ("success", [step(211, 1.0, False)], "the loss differs from the record at step 211: 1.0, recorded 2.0"),
    ("failure", [step(212, 1.0, None)], "the record holds no loss to compare with"),
])  # fmt: skip
def test_a_step_that_goes_well_is_compared_with_the_record(ended: str, steps: Any, wanted: str) -> None:
    assert wanted in replay_summary.sentence(subject(ended), [outcome(None, steps=steps)])


def test_a_replay_that_failed_itself_says_so_and_nan_is_no_json() -> None:
    outcomes = [outcome(None, error_text="No module named train")]
    assert replay_summary.sentence(subject(), outcomes) == "step 212 could not be run again: No module named train."
    agreement = replay_summary.record(subject(), [outcome(None, steps=[step(212, math.nan)])], "", 0.0)
    assert agreement["cells"][0]["steps"][0]["loss"] is None
    assert agreement["schema"] == 1


def test_a_rank_alone_goes_its_own_way_from_its_second_step() -> None:
    """No data has changed and no operator is random: the mean of the gradients over the ranks is missing."""
    of_two = subject()
    of_two.program["environment"] = {"WORLD_SIZE": "2"}
    outcomes = outcome(None, steps=[step(0, 7.5), step(1, 7.4, False)], world=2)
    sentence = replay_summary.sentence(of_two, [outcomes])
    assert "differs from the record at step 1" in sentence
    assert "as it must: gradients are those of one rank, and the run took the mean over 2" in sentence
    assert "what came from another rank or from outside is not in it: ocrlab diagnose runs/x." in sentence
    assert "have changed" not in sentence
    early = outcome(None, steps=[step(0, 7.5, False), step(1, 7.4, False)], world=2)
    assert "data, code or packages have changed" in replay_summary.sentence(of_two, [early])


def trained(losses: list[float], sizes: list[int]) -> RecordedStep:
    pairs = zip(losses, sizes, strict=True)
    steps = [Step(i, i, loss=loss, samples=[f"{j}" for j in range(size)]) for i, (loss, size) in enumerate(pairs)]
    return RecordedStep(
        Path("runs/x"), Flight(Path("ring"), 1, 0, 0, 0.0, steps=steps), {}, len(steps) - 1, None, None, "died"
    )


def test_a_loss_that_had_risen_is_reported_with_an_overflow_and_no_sample() -> None:
    fault = {"kind": "nonfinite", "step": 5, "phase": "loss", "op": "aten::mse_loss", "value": "+Inf", "by": "overflow"}
    fault |= {"tensor": "output aten::mse_loss", "line": "x.py:3 f", "everyone": 3e17}
    sentence = replay_summary.sentence(trained([2.0, 1.0, 5e3, 1e9, 1e20, math.inf], [8] * 6), [outcome(fault)])
    assert "no single sample is the cause: in the middle their values are 3e+17 here" in sentence
    assert sentence.endswith("the loss had risen from 1 at step 1 to 1e+20 at step 4.")
    for losses in ([2.0, 1.0, 1.1, 1.0, 1.2], [0.0, -0.1, 0.2, 0.2, 0.3], [-2e-3, 1e-3, -1.0, -1.2, -1.1]):
        assert "had risen" not in replay_summary.sentence(trained([*losses, math.inf], [8] * 6), [outcome(fault)])


def test_a_batch_that_is_smaller_than_those_before_is_reported() -> None:
    fault = {
        "kind": "exception", "step": 3, "phase": "forward", "path": "lstm", "module": "LSTM",
        "exception": "E: size",
    }  # fmt: skip
    fault |= {"line": "/x/lm.py:9 forward"}
    sentence = replay_summary.sentence(trained([1.0] * 4, [8, 8, 8, 1]), [outcome(fault)])
    assert "at `/x/lm.py:9 forward`" in sentence and sentence.endswith(
        "this batch has 1 sample, those before it had 8."
    )


def test_batches_that_are_fetched_ahead_leave_step_and_sample_open() -> None:
    fault = {**CONV, "kind": "exception", "exception": "IndexError: Target 9", "names": ["a.png"], "ahead": True}
    sentence = replay_summary.sentence(subject(), [outcome(fault)])
    assert sentence.startswith("a fault that comes again, forward,") and "rec.batches around its prefetcher" in sentence
    assert "step 212" not in sentence and "a.png" not in sentence
    assert not variants.wants_alone(fault, 4, on_gpu=False)


def test_what_comes_not_again_is_reported_with_the_error_that_the_run_ended_with(tmp_path: Path) -> None:
    of = subject()
    of.run = tmp_path
    error = {"type": "OSError", "message": "[Errno 28] No space left on device: 'last.ckpt'", "where": "save.py:4 save"}
    (tmp_path / ".FAILURE").write_text(json.dumps({"schema": 1, "status": "failure", "started": "", "error": error}))
    sentence = replay_summary.sentence(of, [outcome(None, steps=[step(212, 0.5)])])
    assert sentence.endswith(
        "; the run ended with OSError: [Errno 28] No space left on device: 'last.ckpt', at `save.py:4 save`."
    )
    (tmp_path / ".FAILURE").write_text("no JSON")
    assert "ended with" not in replay_summary.sentence(of, [outcome(None, steps=[step(212, 0.5)])])


ILLEGAL = {
    **CONV,
    "kind": "exception",
    "exception": "RuntimeError: CUDA error: an illegal memory access was encountered",
}


def test_all_that_makes_a_fault_go_away_is_named_and_what_it_stays_with() -> None:
    outcomes = [outcome(dict(ILLEGAL), variants.BLOCKING), outcome(None, variants.CPU), outcome(None, variants.CUDNN)]
    assert replay_summary.sentence(subject(), outcomes).endswith("; does not happen on the CPU and without cuDNN.")
    ways = (variants.CUDNN, variants.FP32, variants.SANITIZER)
    inputs = {**ILLEGAL, "inputs": ["(4, 8) fp32"]}
    outcomes = [outcome(inputs, variants.BLOCKING), *(outcome(dict(inputs), cell) for cell in ways)]
    assert replay_summary.sentence(subject(), outcomes).endswith(
        "; still happens without cuDNN, in fp32 and under the stream sanitizer."
    )


def test_another_fault_is_not_reported_to_stay() -> None:
    value = {**CONV, "kind": "exception", "exception": "ValueError: no such size\nand more"}
    outcomes = [outcome(dict(ILLEGAL), variants.BLOCKING), outcome(value, variants.CPU)]
    sentence = replay_summary.sentence(subject(), outcomes)
    assert (
        sentence.endswith("; fails in another way on the CPU: ValueError: no such size.")
        and "still happens" not in sentence
    )
    outcomes[1] = outcome({**ILLEGAL, "path": "stem"}, variants.CUDNN)
    assert "fails in another way without cuDNN in `stem`: RuntimeError: CUDA error" in replay_summary.sentence(
        subject(), outcomes
    )
    race = {"step": 0, "kind": "exception", "exception": "torch.cuda._sanitizer.CUDASanitizerErrors: detected 1 errors"}
    outcomes[1] = outcome(race, variants.SANITIZER)
    assert "; a race between streams is seen under the stream sanitizer: torch" in replay_summary.sentence(
        subject(), outcomes
    )
    target = {"kind": "target", "tensor": "target batch[1]", "value": "9", "index": [3], "allowed": "0 to 4"}
    outcomes[1] = outcome(target, variants.CPU)
    assert replay_summary.sentence(subject(), outcomes).endswith(
        "fails in another way on the CPU: target batch[1] is 9 at [3], allowed 0 to 4."
    )
    outcomes[1] = outcome({"kind": "exception", "exception": "RuntimeError: No CUDA GPUs are available"}, variants.CPU)
    assert "CPU" not in replay_summary.sentence(subject(), outcomes)


def test_what_hides_a_fault_is_reported_where_only_the_program_as_it_was_shows_it() -> None:
    outcomes = [
        outcome(None, variants.BLOCKING),
        outcome(dict(ILLEGAL), variants.AS_IT_WAS),
        outcome(None, variants.SANITIZER),
    ]
    assert replay_summary.sentence(subject(), outcomes).endswith(
        "; does not happen with CUDA_LAUNCH_BLOCKING=1 and under the stream sanitizer; it depends on timing; "
        "no race is seen."
    )
    outcomes[0] = outcome(None, variants.TRACED, steps=[step(212, 1.0, False)])
    assert "timing" not in replay_summary.sentence(subject(), outcomes), "it went another way than the run"


LIBRARY: dict[str, Any] = {"step": 212, "kind": "exception", "phase": "loss", "line": "train.py:114 forward"}
LIBRARY |= {"exception": "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"}
KERNEL = {**ILLEGAL, "phase": "forward", "path": "fusion", "module": "Fusion", "op": "Kernel", "line": "train.py:113 f"}


def test_a_fault_without_a_place_has_that_of_the_cell_that_shows_one() -> None:
    outcomes = [outcome(dict(LIBRARY), variants.BLOCKING), outcome(dict(KERNEL), variants.CUDNN)]
    sentence = replay_summary.sentence(subject(), outcomes)
    assert sentence.startswith("first fault at step 212, forward, `fusion` (Fusion), op `Kernel`")
    assert "CUDNN_STATUS_EXECUTION_FAILED; the place is that of the replay without cuDNN; " in sentence
    assert sentence.endswith(
        "fails in another way without cuDNN: RuntimeError: CUDA error: an illegal memory access was encountered."
    )
    fault = replay_summary.record(subject(), outcomes, "", 1.0)["fault"]
    assert (fault["path"], fault["op"], fault["placed"]) == ("fusion", "Kernel", "without cuDNN")
    assert fault["exception"] == LIBRARY["exception"], "what the run has shown"
    assert outcomes[0].fault == LIBRARY, "a trial is reported as it was"
