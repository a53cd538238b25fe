"""What stands beside a message or instead of one: frames of the data's code, reboots, endings without a word."""

from __future__ import annotations

import pytest

from ocrlab.diagnose.classify import classify
from ocrlab.records import Incident, Verdict

IPYTHON = (
    "TypeError                                 Traceback (most recent call last)",
    "~/det/data/boxes.py in ratio(self, word)",
    "     11 ",
    "---> 12         return self.height / len(word)",
    "TypeError: object of type 'int' has no len()",
)


def test_a_notebooks_traceback_through_the_datas_code_is_the_datas() -> None:
    causes = [cause.id for cause in told("\n".join(IPYTHON)).causes]
    assert {"data.annotation", "data.sample"} <= set(causes[:3])


def test_a_notebooks_traceback_through_the_model_is_not() -> None:
    log = "\n".join(IPYTHON).replace("data/boxes.py", "net/head.py")
    assert "data.annotation" not in [cause.id for cause in told(log).causes]


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("RuntimeError: cudnn RNN backward can only be called in training mode", "user.autograd"),
        ("RuntimeError: expected backend CUDA and dtype Half but got backend CPU and dtype Half", "user.device"),
        ("TypeError: Fit.__init__() got an unexpected keyword argument 'gpus'", "build.abi"),
        ("Exception: pages/17.png does not exist!", "io.missing"),
        ("RuntimeError: invalid argument 2: sizes do not match at TH/generic/THTensor.cpp:8", "user.shape"),
        ("Your session has crashed.", "notebook.kernel_died"),
    ],
)
def test_a_message_alone(log: str, cause: str) -> None:
    assert told(log).causes[0].id == cause


@pytest.mark.parametrize("words", ["the server reboots after a while", "it powers off the whole machine", "OS crashes"])
def test_a_computer_that_goes_down_is_hardware(words: str) -> None:
    verdict = told("", words)
    assert verdict.causes[0].id == "hw.gpu"
    assert verdict.causes[0].confidence < 0.7


def test_who_cannot_reach_the_server_by_ssh_has_no_failed_ranks() -> None:
    verdict = told("ssh: connect to host node1 port 22: No route to host")
    assert not any(cause.id.startswith("dist.") for cause in verdict.causes)


def test_several_cards_that_spin_and_stand_still() -> None:
    verdict = told("", "4 RTX 4090: it freezes with GPU utilization at 100%")
    assert "dist.p2p" in [cause.id for cause in verdict.causes[:3]]


def test_an_end_at_random_is_one_without_a_word() -> None:
    verdict = told("", "on Windows the training stops at a random epoch")
    assert {"host.oom_kill", "native.segv"} & {cause.id for cause in verdict.causes[:3]}


@pytest.mark.parametrize(
    ("asserted", "cause"),
    [
        ("boxes.shape[-1] == 4", "user.shape"),
        ("mask.dtype == torch.bool", "user.dtype"),
        ("weight.is_cuda", "user.device"),
        ("os.path.exists(root)", "io.missing"),
        ("torch.isfinite(loss)", "num.nonfinite"),
    ],
)
def test_what_a_bare_assertion_asserts_is_not_so(asserted: str, cause: str) -> None:
    trace = f'Traceback (most recent call last):\n  File "net.py", line 7, in forward\n    assert {asserted}\n'
    assert told(trace + "AssertionError").causes[0].id == cause
    assert told(trace + "    ~~~~~~~^^^^\nAssertionError").causes[0].id == cause
    said_why = told(trace + "AssertionError: the reader has ended").causes
    assert cause not in [one.id for one in said_why]


def test_a_build_whose_program_was_killed_waits_for_no_lock() -> None:
    log = "Using /root/.cache/torch_extensions/py310 as PyTorch extensions root...\nexits with return code = -9"
    assert told(log).causes[0].id == "host.oom_kill"


@pytest.mark.parametrize(
    ("log", "sure"),
    [("exits with return code = -11", False), ("Fatal Python error: Segmentation fault", True)],
)
def test_a_segmentation_fault_without_its_place_is_less_sure(log: str, sure: bool) -> None:
    cause = told(log).causes[0]
    assert (cause.id, cause.confidence >= 0.8) == ("native.segv", sure)


def test_a_sample_without_a_field_is_the_annotation() -> None:
    verdict = told("AttributeError: Cannot find field 'gt_boxes' in the given Instances!")
    assert verdict.causes[0].id == "data.annotation"


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("ValueError: need at least one array to stack", "data.sample"),
        ("ValueError: empty range in randrange(3, 3)", "data.sample"),
        ("AssertionError: num_classes (4) does not match the length of CLASSES (5)", "data.annotation"),
        ("srun: error: Unable to create step for job 8: Job/step already completing", "scheduler.kill"),
    ],
)
def test_a_message_of_what_holds_nothing_or_too_much(log: str, cause: str) -> None:
    assert told(log).causes[0].id == cause


def test_a_cluster_that_clears_idle_jobs_is_its_scheduler() -> None:
    assert told("", "the cluster cancelled it because the card was idle").causes[0].id == "scheduler.kill"


def test_an_address_that_c10d_tries_in_vain_is_no_sure_failure() -> None:
    line = "[W socket.cpp:697] [c10d] The client socket has failed to connect to [node1]:4 (errno: 101 - unreachable)."
    assert told(line).causes[0].confidence < 0.7
    assert told(line.replace("[W", "[E")).causes[0].confidence >= 0.8


def test_a_compiler_that_only_failed_may_lack_cuda_or_itself() -> None:
    failed = "RuntimeError: Error compiling objects for extension"
    assert told(failed).causes[0].confidence < 0.7
    assert told(f"x.cpp:3: error: expected ';'\n{failed}").causes[0].confidence >= 0.8


def told(log: str, context: str = "") -> Verdict:
    return classify(Incident(texts={"log_tail.txt": log}, context=context))
