"""The catalogue obeys its schema: every cause once, every example named by its own signatures, no slow pattern."""

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
    "a" * 1000, "1234567890 " * 90, "Error: CUDA error: " * 50, 'File "x", line 3 in worker gpu ' * 30,
    "(([[{{" * 150,
)  # fmt: skip


def ids(shared: Path) -> list[str]:
    return re.findall(r"^\| `([\w.]+)` \|", (shared / "diagnosis/causes.md").read_text(encoding="utf-8"), re.MULTILINE)


# What the shared list has no id for.
OURS = {
    "kernel.stream_race", "build.compile", "build.install", "build.missing_package", "data.nonfinite",
    "hw.host", "io.device", "io.download", "io.port", "kernel.capture", "kernel.context", "user.amp",
    "user.code", "user.compile",
}  # fmt: skip


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


def test_an_unknown_id_is_refused_with_near_ones() -> None:
    with pytest.raises(ConfigError, match="kernel\\.illegal_address"):
        catalogue.explain("kernel.illegal_adress")


def test_the_listing_has_all() -> None:
    assert all(f"  {entry.id} " in catalogue.listing() for entry in ENTRIES)


def test_only_commands_that_exist_are_named() -> None:
    commands = re.findall(r"\bocrlab ([a-z]+)\b", catalogue.FILE.read_text(encoding="utf-8"))
    assert set(commands) <= set(COMMANDS), "an experiment must be one that people can do"
    assert {"watch", "replay"} <= set(commands)


def first(*lines: str) -> Cause:
    return classify(Incident(texts={"log_tail.txt": "\n".join(lines)})).causes[0]


FORMS = [(entry.id, form) for entry in catalogue.load().entries.values() for form in entry.forms if form.example]


@pytest.mark.parametrize(("cause", "form"), FORMS, ids=[form.example[:40] for _, form in FORMS])
def test_an_example_of_a_form_gets_its_fix(cause: str, form: catalogue.Form) -> None:
    first_cause = first(form.example)
    assert (first_cause.id, first_cause.fix) == (cause, form.fix)


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
