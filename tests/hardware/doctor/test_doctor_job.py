"""The report is always complete: no check can stop the ladder, and what misbehaves is itself a finding."""

import threading
from typing import Any

import pytest

from ocrlab.hardware.doctor import check_packages, doctor_job, text_table
from ocrlab.hardware.doctor.check_spec import Options, ok
from ocrlab.records import Check

FAULTS = {  # planted -> (judgement, cause, what the finding must say)
    "hang": ("fail", "hang.deadlock", "did not return within"),
    "illegal": ("fail", "build.cpu_isa", "SIGILL"),
    "illegal_in_a_thread": ("fail", "build.cpu_isa", "SIGILL"),
    "segv": ("fail", "native.segv", "SIGSEGV"),
    "killed": ("fail", "ext.signal", "SIGKILL"),
    "flood": ("fail", None, "printed more than"),
    "silent": ("fail", None, "exited with status 0 and no answer"),
    "says_why": ("fail", None, "the last thing that it said"),
    "garbage": ("fail", None, "garbage"),
    "another_form": ("fail", None, "garbage"),
    "raises": ("fail", None, "ValueError: of its own accord"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_misbehaves_is_a_finding_and_the_others_are_checked(fault: str, ask: Any, options: Options) -> None:
    planned = [ask("answer", "before", 1), ask(fault, step=2, deadline=15, idle=0.5), ask("answer", "after", 3)]
    checks = doctor_job.run(options, planned=planned)
    assert [(check.name, check.step) for check in checks] == [("before", 1), (fault, 2), ("after", 3)]
    judgement, cause, observed = FAULTS[fault]
    assert (checks[1].judgement, checks[1].cause) == (judgement, cause)
    assert observed in checks[1].observed
    assert checks[1].need or checks[1].do
    assert [checks[0].judgement, checks[2].judgement] == ["ok", "ok"]


def test_an_answer_counts_even_where_the_process_then_dies(ask: Any, options: Options) -> None:
    checks = doctor_job.run(options, planned=[ask("dies_at_exit"), ask("stays_at_exit", step=2, deadline=1)])
    assert [check.judgement for check in checks] == ["ok", "warn", "ok", "warn"]
    assert "SIGSEGV as its process ended" in checks[1].observed
    assert "never ended" in checks[3].observed


def test_what_depends_on_it_is_asked_afterwards_or_skipped(ask: Any, options: Options) -> None:
    judged: list[str] = []

    def judge(answer: Any, facts: Any) -> list[Check]:
        judged.append(str(facts["first"]["told"]))
        return [ok("second", "fine")]

    planned = [
        ask("answer", "second", 2, after=("first",), judge=judge),
        ask("answer", "third", 3, skip=lambda facts: "there is no need"),
        ask("answer", "fourth", 4, skip=lambda facts: facts["not there"]),  # cannot tell, so it is asked
        ask("answer", "first", 1, arguments={"number": 1}),
    ]
    checks = doctor_job.run(options, planned=planned)
    assert judged == ["{'number': 1}"]
    assert [check.judgement for check in checks] == ["ok", "skip", "ok", "ok"]


def test_asks_that_wait_for_each_other_or_for_nobody_are_asked_all_the_same(ask: Any, options: Options) -> None:
    planned = [ask("answer", "a", after=("b",)), ask("answer", "b", after=("a",)), ask("answer", "c", after=("gone",))]
    assert [check.judgement for check in doctor_job.run(options, planned=planned)] == ["ok", "ok", "ok"]


def test_the_progress_is_reported_in_this_thread(ask: Any, options: Options) -> None:
    began: set[str] = set()
    steps: dict[int, list[Check]] = {}

    def report(complete: dict[int, list[Check]], running: list[str]) -> None:
        assert threading.current_thread() is threading.main_thread()
        began.update(running)
        steps.update(complete)

    planned = [ask("answer", "b", 1), ask("answer", "a", 1), ask("silent", "c", 2)]
    checks = doctor_job.run(options, report, planned=planned)
    assert [check for step in sorted(steps) for check in steps[step]] == checks
    assert began == {"a", "b", "c"}


def test_an_interrupt_ends_the_children(ask: Any, options: Options) -> None:
    def report(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        doctor_job.run(options, report, planned=[ask("hang")])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("doctor")]


def test_secrets_and_control_characters_stay_out(ask: Any, options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "f00dfeedf00dfeed")
    arguments = {"key": "f00dfeedf00dfeed", "title": "a\x1b]0;title\x07b\nc"}
    [check] = doctor_job.run(options, planned=[ask("answer", arguments=arguments)])
    assert "f00dfeed" not in check.observed
    assert check.observed.isprintable()


def test_a_python_that_is_too_old_is_reported_so(tmp_path) -> None:
    old = tmp_path / "python"
    old.write_text(
        "#!/bin/sh\necho 'File probe_child.py, line 9' >&2\necho 'SyntaxError: future feature' >&2\nexit 1\n"
    )
    old.chmod(0o755)
    checks = doctor_job.run(
        Options(str(old), tmp_path), planned=check_packages.package_probes(Options(str(old), tmp_path))[:1]
    )
    assert [(check.judgement, check.need) for check in checks] == [("fail", "Python 3.8 or newer")]


def test_an_interpreter_that_is_none_still_gives_a_report(tmp_path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nexit 7\n")
    fake.chmod(0o755)
    checks = doctor_job.run(Options(str(fake), tmp_path))
    assert {check.step for check in checks} == set(range(1, 11))
    assert doctor_job.worst(checks) == "fail"
    assert "exited with status 7" in checks[0].observed


CHECKS = [
    Check("interpreter", "ok", "CPython 3.11.7, 64 bit, x86_64, in a virtual environment", step=1),
    Check("import torch", "fail", "died of SIGILL " * 12, "a build for this processor", "python -c 'x' " * 9, 2, "a.b"),
    Check("a name that is far too long for its column", "warn", "something", "else", "true", 3),
    Check("WSL2", "skip", "this is not WSL — nor anything else", step=8),
]


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_it_fits_the_terminal(columns: int) -> None:
    look = text_table.TerminalStyle(columns)
    lines = [line for check in CHECKS for line in text_table.finding(check, look)]
    lines += [text_table.heading(2, look), text_table.summary(CHECKS, 3.0, look)]
    assert max(map(len, lines)) <= columns
    text = " ".join("".join(lines).split())
    for check in CHECKS:
        assert check.name in text
    assert all(word in text for word in ("need", "do", "cause", "a.b"))
