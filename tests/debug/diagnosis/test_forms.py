"""A cause in several forms: each has its own fix, and the entry's general fix is used where none fits."""

from __future__ import annotations

import time

import pytest

from ocrlab.debug.diagnosis import catalogue
from ocrlab.debug.diagnosis.classify import classify
from ocrlab.records import Cause, Incident


def first(*lines: str) -> Cause:
    return classify(Incident(texts={"log_tail.txt": "\n".join(lines)})).causes[0]


FORMS = [(entry.id, form) for entry in catalogue.load().entries.values() for form in entry.forms if form.example]


@pytest.mark.parametrize(("cause", "form"), FORMS, ids=[form.example[:40] for _, form in FORMS])
def test_an_example_of_a_form_gets_its_fix(cause: str, form: catalogue.Form) -> None:
    first_cause = first(form.example)
    assert (first_cause.id, first_cause.fix) == (cause, form.fix)


def test_a_weaker_line_does_not_choose_the_form() -> None:
    cause = first("NVIDIA GeForce RTX 4090", "torch 1.4.0+cu101", "RuntimeError: NCCL Error 1: unhandled cuda error")
    assert (cause.id, cause.fix) == ("build.arch", catalogue.load().entries["build.arch"].fix)


def test_frames_of_eight_ranks_that_mix_are_read_in_a_moment() -> None:
    """Each line of shown source could once be taken in several ways, and eight ranks show the same forty lines."""
    shown = ["/p/utils/data/loader.py in fetch(self, index)", *(f"    {n}     x = page[{n}]" for n in range(40))]
    log = "\n".join(f"[rank{rank}]: {line}" for line in [*shown, "Too many open files error"] for rank in range(8))
    before = time.process_time()
    causes = classify(Incident(texts={"log_tail.txt": log})).causes
    assert time.process_time() - before < 3
    assert causes[0].id == "host.fd_limit"


@pytest.mark.parametrize("path", ["data/bedroom/img.png", "data/train.txt", "dumbbells/7.jpg"])
def test_a_data_file_is_not_mistaken_for_a_file_that_a_handler_writes(path: str) -> None:
    log = f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'"
    best = classify(Incident("failed", 1, texts={"log_tail.txt": log})).causes[0]
    assert best.id == "io.missing"
    assert "first error" not in best.fix
