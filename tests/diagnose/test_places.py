"""Errors that no signature knows: what the library that raised them makes likely, and what it says nothing of."""

from __future__ import annotations

import pytest

from ocrlab.diagnose.classify import classify
from ocrlab.records import Incident, Verdict

SITE = "/opt/env/lib/python3.11/site-packages"


def raised(file: str, error: str, function: str = "inner") -> Verdict:
    lines = (
        "Traceback (most recent call last):",
        '  File "/project/fit.py", line 9, in <module>',
        f'  File "{file}", line 88, in {function}',
        error,
    )
    return classify(Incident(texts={"log_tail.txt": "\n".join(lines) + "\n"}))


@pytest.mark.parametrize(
    ("file", "function", "cause"),
    [
        ("torch/nn/functional.py", "fold", "user.shape"),
        ("torch/serialization.py", "_load", "ckpt.corrupt"),
        ("torch/serialization.py", "_save", "io.disk_full"),
        ("torch/_inductor/graph.py", "run", "user.compile"),
        ("torch/distributed/distributed_c10d.py", "new_group", "dist.misconfig"),
        ("torch/distributed/distributed_c10d.py", "all_reduce", "dist.timeout_desync"),
        ("torch/distributed/rendezvous.py", "_env_rendezvous_handler", "dist.network"),
        ("torch/distributed/checkpoint/default_planner.py", "create_plan", "ckpt.mismatch"),
        ("torch/distributed/tensor/_dispatch.py", "dispatch", "user.shape"),
        ("torch/nn/parallel/data_parallel.py", "forward", "user.device"),
        ("torch/nn/parallel/distributed.py", "__init__", "dist.misconfig"),
        ("torch/utils/cpp_extension.py", "load", "build.compile"),
        ("torch/utils/data/_utils/collate.py", "collate", "data.sample"),
        ("PIL/TiffImagePlugin.py", "_open", "data.corrupt"),
        ("wandb/sdk/lib/service.py", "start", "tracker.network"),
    ],
)
def test_an_unknown_error_is_of_its_library_and_never_sure(file: str, function: str, cause: str) -> None:
    found = raised(f"{SITE}/{file}", "RuntimeError: quux of the third kind", function).causes
    assert (found[0].id, found[0].confidence < 0.5) == (cause, True)
    assert all(one.experiment for one in found)


def test_what_torch_distributed_checks_itself_is_a_wrong_setting() -> None:
    for file, function in (("distributed_c10d.py", "all_reduce"), ("rendezvous.py", "rendezvous")):
        found = raised(f"{SITE}/torch/distributed/{file}", "ValueError: quux must be positive", function).causes
        assert found[0].id == "dist.misconfig"


def test_frames_of_windows_are_read() -> None:
    found = raised(r"C:\env\Lib\site-packages\torch\nn\functional.py", "RuntimeError: quux").causes
    assert found[0].id == "user.shape"


@pytest.mark.parametrize("error", ["KeyError: 'quux'", "AttributeError: no quux", "KeyboardInterrupt"])
def test_a_wrong_name_is_the_programs_own_wherever_it_is_noticed(error: str) -> None:
    assert "user.shape" not in [one.id for one in raised(f"{SITE}/torch/nn/functional.py", error).causes]


def test_an_error_of_the_program_itself_names_no_library() -> None:
    assert raised("/project/model.py", "RuntimeError: quux").causes == []


def test_a_message_that_is_known_counts_alone() -> None:
    found = raised(f"{SITE}/torch/nn/functional.py", "RuntimeError: CUDA error: no kernel image is available")
    assert found.causes[0].id == "build.arch"
