"""Sentences of people between the lines of programs."""

from __future__ import annotations

import pytest

from ocrlab.diagnose import prose
from ocrlab.diagnose.classify import classify
from ocrlab.records import Incident


@pytest.mark.parametrize("line", ["My run stops after an epoch.", "训练的时候卡在第一步", "Does anyone know why?"])
def test_a_sentence(line: str) -> None:
    assert prose.is_sentence(line)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Epoch 3/10 loss=0.31",
        "[rank0] waiting for the others to arrive",
        "  return self.model(batch)",
        "ValueError: these are words of a program",
        "2026-11-02 10:00:01 the run has started now",
    ],
)
def test_a_line_of_a_program(line: str) -> None:
    assert not prose.is_sentence(line)


def test_what_is_no_sentence_is_blank_and_the_rest_stays_in_its_place() -> None:
    text = "loss 0.5\nMy run stops here every time.\nNo weights were found so start anew\nstep 2"
    found = prose.sentences(text)
    assert (len(found), found.strip()) == (len(text), "My run stops here every time.")
    assert found.index("My") == text.index("My")


def test_words_pasted_as_a_log_are_never_sure() -> None:
    words = "My machine has 16 GB.\nThe RAM is full and exhausted after an epoch.\n"
    told = classify(Incident(texts={"log_tail.txt": words})).causes[0]
    assert (told.id, told.confidence <= 0.7) == ("host.oom_kill", True)


@pytest.mark.parametrize(
    ("text", "short"),
    [("It freezes for a few seconds.", True), ("It freezes for ever.", False), ("Stuck for 2 hours", False)],
)
def test_a_wait_that_ends_by_itself(text: str, short: bool) -> None:
    assert prose.pauses(text) is short


@pytest.mark.parametrize("text", ["ddp hangs on 4090s", "RuntimeError about the driver version", "nms ops missing!?"])
def test_a_title_is_what_somebody_typed(text: str) -> None:
    assert prose.is_title(text)


@pytest.mark.parametrize(
    "text", ["", "CUDA error 30%", "[rank0] is late again", "wandb: ERROR no such run", "a\nb\nc\nd"]
)
def test_what_a_program_printed_is_no_title(text: str) -> None:
    assert not prose.is_title(text)


def test_a_question_or_a_wish_is_only_that() -> None:
    assert prose.asks("Should I set pin_memory=True on WSL2?")
    assert prose.asks("Add a test that a corrupt image is skipped")
    assert not prose.asks("My images are corrupt and the loader fails.")
    said = classify(Incident(texts={"log_tail.txt": "Add a test that a corrupt image is skipped"}))
    assert all(cause.confidence < 0.7 for cause in said.causes)
