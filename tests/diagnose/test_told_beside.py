"""What stands beside a message or instead of one: frames of the data's code, reboots, endings without a word."""

from __future__ import annotations

import pytest

from ocrlab.diagnose.classify import classify
from ocrlab.records import Incident, Verdict

IPYTHON = (
    "ZeroDivisionError                         Traceback (most recent call last)",
    "~/work/data/boxes.py in ratio(self, word)",
    "     11 ",
    "---> 12         return self.height / len(word)",
    "ZeroDivisionError: division by zero",
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


def told(log: str, context: str = "") -> Verdict:
    return classify(Incident(texts={"log_tail.txt": log}, context=context))
