"""The catalogue obeys its schema: every cause once, every example named by its own signatures, no slow pattern."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from ocrlab.cli import COMMANDS
from ocrlab.debug.diagnosis import catalogue
from ocrlab.debug.diagnosis.classify import classify
from ocrlab.errors import ConfigError
from ocrlab.records import Cause, Incident

ENTRIES = list(catalogue.load().entries.values())
UNBOUNDED = re.compile(r"(?<!\\)(?:\.|\[\^\\n\]|\\S|\\w)(?:\*|\+)[^\]]{0,40}(?<!\\)(?:\.|\[\^\\n\])(?:\*|\+)")
HOSTILE = (
    "a" * 1000,
    "1234567890 " * 90,
    "Error: CUDA error: " * 50,
    'File "x", line 3 in worker gpu ' * 30,
    "(([[{{" * 150,
)


def ids(shared: Path) -> list[str]:
    return re.findall(r"^\| `([\w.]+)` \|", (shared / "diagnosis/causes.md").read_text(encoding="utf-8"), re.MULTILINE)


# What the shared list has no id for.
OURS = {
    "kernel.stream_race",
    "build.compile",
    "build.install",
    "build.missing_package",
    "data.nonfinite",
    "hw.host",
    "io.device",
    "io.download",
    "io.port",
    "kernel.capture",
    "kernel.context",
    "user.amp",
    "user.code",
    "user.compile",
}


def test_every_cause_is_there_once(shared: Path) -> None:
    names = [entry.id for entry in ENTRIES]
    assert len(names) == len(set(names))
    assert set(ids(shared)) <= set(names)
    assert set(names) - set(ids(shared)) <= OURS <= set(names)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_an_entry_is_complete(entry: catalogue.Entry) -> None:
    causes_and_guides = catalogue.load()
    assert all((entry.title, entry.about, entry.why, entry.fix, entry.signs, entry.examples))
    assert len(entry.experiment) > 15
    assert set(entry.otherwise) <= set(causes_and_guides.entries)
    assert entry.id not in entry.otherwise
    assert set(entry.guides) <= set(causes_and_guides.guides)


EXAMPLES = [(entry.id, example) for entry in ENTRIES for example in entry.examples]


@pytest.mark.parametrize(("cause", "example"), EXAMPLES, ids=[f"{cause}-{text[:30]}" for cause, text in EXAMPLES])
def test_an_example_is_named_by_its_own_entry(cause: str, example: str) -> None:
    verdict = classify(Incident(texts={"log_tail.txt": example}))
    assert [first.id for first in verdict.causes[:1]] == [cause]


def test_every_guide_is_pointed_at() -> None:
    assert {guide for entry in ENTRIES for guide in entry.guides} == set(catalogue.load().guides)


def test_advice_alone_names_nothing() -> None:
    advice = (
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
        "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
        "If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation."
    )
    assert classify(Incident(texts={"log_tail.txt": advice})).causes == []


def test_no_pattern_can_run_away() -> None:
    """Bounded repeats only, and a megabyte of hostile text (lines of 1000 characters) is searched in seconds."""
    patterns = {pattern for sign in catalogue.load().signs() for pattern in (*sign.all, *sign.none)}
    assert [pattern.pattern for pattern in patterns if re.search(r"(?<!\\)\.[*+]", pattern.pattern)] == []
    assert [pattern.pattern for pattern in patterns if UNBOUNDED.search(pattern.pattern)] == []
    text = "\n".join(line[:1000] for line in HOSTILE for _ in range(20))
    slow = []
    for pattern in patterns:
        start = time.process_time()
        sum(1 for _ in pattern.finditer(text))
        seconds = time.process_time() - start
        if seconds > 1.0:  # for a tenth of a megabyte; the slowest need milliseconds
            slow.append((pattern.pattern, seconds))
    assert slow == []


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_explaining_tells_everything(entry: catalogue.Entry) -> None:
    text = catalogue.explain(entry.id)
    for part in (entry.title, entry.about, *entry.why, entry.experiment, entry.fix):
        assert part in text
    short = catalogue.explain(entry.id, signatures=False)
    assert text.startswith(short) and "Signatures" not in short


def test_explaining_an_illegal_access_gives_the_command_lines() -> None:
    text = catalogue.explain("kernel.illegal_address")
    blocking = text.partition("CUDA_LAUNCH_BLOCKING=1 COMMAND")[2].partition("compute-sanitizer")[0]
    assert "slower" in blocking and not re.search(r"\d ?%", blocking), "a figure that nobody has measured"
    for command in (
        "--tool memcheck",
        "--tool racecheck",
        "--tool initcheck",
        "cuda-gdb",
        "CUDA_ENABLE_COREDUMP_ON_EXCEPTION",
    ):
        assert command in text


def test_an_unknown_id_is_refused_with_near_ones() -> None:
    with pytest.raises(ConfigError, match="kernel\\.illegal_address"):
        catalogue.explain("kernel.illegal_adress")


def test_the_listing_has_all() -> None:
    assert all(f"  {entry.id} " in catalogue.listing() for entry in ENTRIES)


def test_only_commands_that_exist_are_named() -> None:
    commands = re.findall(r"\bocrlab ([a-z]+)\b", catalogue.FILE.read_text(encoding="utf-8"))
    assert set(commands) <= set(COMMANDS), "an experiment must be one that people can do"
    assert {"watch", "replay"} <= set(commands)


@pytest.mark.parametrize("cause", ["native.segv", "native.abort", "kernel.illegal_address", "num.nonfinite"])
def test_a_cause_that_a_replay_can_place_asks_for_a_replay(cause: str) -> None:
    assert "ocrlab replay RUN" in catalogue.load().entries[cause].experiment


NUMBERS = {
    "driver.state": (3, 30, 34, 304, 802, 803, 804, 999),
    "driver.too_old": (35, 222),
    "driver.no_visible_device": (100, 101),
    "driver.device_busy": (46,),
    "build.arch": (98, 209, 218),
    "hw.gpu": (214,),
    "gpumem.capacity": (2,),
    "kernel.launch_resources": (701,),
    "kernel.launch_timeout": (702,),
}


@pytest.mark.parametrize(("cause", "number"), [(cause, n) for cause, numbers in NUMBERS.items() for n in numbers])
def test_a_bare_number_of_cuda_is_named_but_not_sure(cause: str, number: int) -> None:
    for text in (f"RuntimeError: CUDA error {number}", f"CUDA error code={number}", f"cuResult: {number}"):
        first = causes(text)[0]
        assert (first.id, first.confidence < 0.8) == (cause, True), text


@pytest.mark.parametrize("text", ["CUDA error 2 of 5 checks passed", "cuda error 30%", "CUDA error 3.5e-4"])
def test_other_numbers_beside_cuda_are_no_codes(text: str) -> None:
    assert not causes(text)


def causes(text: str) -> list[Cause]:
    return list(classify(Incident(texts={"log_tail.txt": text})).causes)
