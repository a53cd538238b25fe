"""Symptoms told in a sentence: ranked causes that nobody is sure of, and what to look at where there is no failure."""

from __future__ import annotations

import pytest

from ocrlab.diagnose import complaint, verdict
from ocrlab.diagnose.classify import classify
from ocrlab.diagnose.log import page
from ocrlab.records import Incident, Verdict

TOLD = (
    ("Our run stands still after a while, and nothing more is printed.", "loader.hang_sample"),
    ("With six workers the second batch is never returned.", "loader.fork_deadlock"),
    ("It halts while it fetches a batch; the pages lie on NFS.", "loader.hang_sample"),
    ("Two machines, one rank each: neither of them makes any progress.", "dist.timeout_desync"),
    ("No progress since noon; both cards show 100 % utilisation.", "dist.p2p"),
    ("On 8 GPUs it does not continue after validation.", "dist.timeout_desync"),
    ("Nothing is shown on the console for an hour after I start it.", "hang.build_lock"),
    ("It does not respond while ninja compiles our CUDA op.", "hang.build_lock"),
    ("model.cuda() does not return, and nvidia-smi shows nothing.", "hang.cuda_init"),
    ("When the run is over it does not finish: mlflow waits for ever.", "hang.tracker"),
    ("One core is busy and nothing moves.", "loader.hang_sample"),
    ("In Jupyter under Windows the cell does not finish with 2 workers.", "loader.pickling"),
    ("Swap is at 100 % and nothing responds any more.", "host.oom_kill"),
    ("Each time it quits by itself in the third epoch.", "host.oom_kill"),
    ("It disappears abruptly while the data set is read.", "host.oom_kill"),
    ("The job was stopped overnight on our cluster.", "scheduler.kill"),
    ("In Colab it crashes unexpectedly.", "notebook.kernel_died"),
    ("On Windows 11 it closes itself.", "native.segv"),
    ("The container exits suddenly.", "host.oom_kill"),
    ("My session keeps being restarted in the notebook.", "notebook.kernel_died"),
    ("It stops at one iteration; the utilisation of the card is zero.", "loader.hang_sample"),
    ("It gives no feedback while it loads its plugin.", "hang.build_lock"),
    ("After the last page it is stuck at a breakpoint.", "hang.stopped"),
    ("With DataParallel it does not start.", "dist.p2p"),
    ("It chokes while it builds the extension.", "hang.build_lock"),
    ("Memory of the card climbs from step to step.", "gpumem.leak"),
    ("VRAM is higher after each epoch.", "gpumem.leak"),
    ("The host's memory creeps up by a gigabyte an epoch.", "host.oom_kill"),
    ("训练到第三个 epoch 就没反应了", "loader.hang_sample"),
    ("显存一直在上涨", "gpumem.leak"),
    ("训练中途闪退", "host.oom_kill"),
)
DENIED = (
    "With one worker it does not hang.",
    "Memory does not grow, and the loss falls.",
    "How many epochs did you train for, and with which schedule?",
    "It is stuck for about 40 seconds at each epoch and then goes on.",
)


def judge(words: str, log: str = "") -> Verdict:
    return classify(Incident(texts={"log_tail.txt": log} if log else {}, context=words))


@pytest.mark.parametrize(("words", "cause"), TOLD, ids=[words[:40] for words, _ in TOLD])
def test_a_symptom_told_in_a_sentence_is_ranked_and_never_sure(words: str, cause: str) -> None:
    found = judge(words).causes
    assert cause in [one.id for one in found[:3]]
    assert all(one.confidence <= 0.5 and one.experiment for one in found)


@pytest.mark.parametrize("words", [words for words, _ in TOLD])
def test_a_file_that_holds_the_sentence_is_read_alike(words: str) -> None:
    found = classify(Incident(texts={"log_tail.txt": f"{words}\n"})).causes
    assert [one.id for one in found] == [one.id for one in judge(words).causes]


@pytest.mark.parametrize("words", DENIED)
def test_what_is_denied_or_passes_by_itself_is_no_symptom(words: str) -> None:
    assert judge(words).causes == []


def test_an_error_in_the_log_counts_more_than_words() -> None:
    found = judge("It hangs with two cards.", "RuntimeError: CUDA error: no kernel image is available for execution")
    assert (found.causes[0].id, found.causes[0].confidence > 0.8) == ("build.arch", True)


def test_a_log_alone_tells_no_symptom() -> None:
    lines = [f"Epoch {n} | loss {1 / (n + 1):.3f} | no better checkpoint, not saved" for n in range(5)]
    assert complaint.hits([page("log_tail.txt", "\n".join(["INFO nothing to resume, starting", *lines]))]) == []


def test_where_the_log_stops_is_a_circumstance() -> None:
    log = "Seed set to 1\nInitializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4\n"
    assert "dist.timeout_desync" in [one.id for one in judge("It does not start.", log).causes[:3]]


def test_a_hang_on_one_card_as_well_is_not_of_several() -> None:
    found = judge("It hangs with 4 GPUs, and the same with 1 GPU.").causes
    assert not [one.id for one in found if one.id.startswith("dist.") and one.confidence > 0.45]


def test_the_line_of_the_symptom_is_the_evidence() -> None:
    words = "I use torch 2.5.\nAfter an hour it is stuck.\n"
    line = judge(words).causes[0].evidence[0]
    assert (line.file, line.line) == ("context", 2)


def test_slow_training_is_no_hang_and_gets_its_experiment() -> None:
    found = judge("At the start of every epoch it waits for 30 seconds on 4 GPUs; the cards are idle.")
    assert found.causes == []
    assert complaint.TIMES in verdict.markdown(found)


def test_training_that_learns_nothing_gets_its_experiment() -> None:
    found = judge("The loss does not decrease on the other backend, on the CPU it does.")
    assert found.causes == []
    assert complaint.CHECKS in found.missing
