"""The block of a verdict."""

from __future__ import annotations

from ocrlab.records import Cause, Evidence, RuledOut, Verdict
from ocrlab.reports import verdict_view

SEGV = Cause(
    "native.segv",
    0.9,
    [Evidence("stacks.txt", 3, "File <b>x</b>"), Evidence("facts", None, "the process died of SIGSEGV")],
    "PYTHONFAULTHANDLER=1 COMMAND",
    "Align versions.",
)
VERDICT = Verdict(
    None,
    "killed",
    None,
    "SIGSEGV",
    None,
    [SEGV, Cause("build.abi", 0.3)],
    [RuledOut("host.oom_kill", "no count")],
    ["dmesg"],
)


def test_it_says_cause_confidence_evidence_fix_experiment_and_what_is_ruled_out() -> None:
    html = verdict_view.view(VERDICT, {"stacks.txt": "a & b", "kernel_log.txt": " "}, folder="runs/x").html
    for part in ("native.segv", "90 % sure", "stacks.txt:3", "Align versions.", "PYTHONFAULTHANDLER=1 COMMAND"):
        assert part in html
    for part in ("build.abi", "host.oom_kill", "no count", "dmesg", "runs/x", "a &amp; b", "segmentation fault"):
        assert part in html
    assert "File &lt;b&gt;x&lt;/b&gt;" in html
    assert html.count("<details>") == 1  # an empty text has nothing to unfold


def test_the_text_states_the_same() -> None:
    text = verdict_view.text(VERDICT)
    assert text.startswith("Cause: ")
    assert "(native.segv, 90 % sure)" in text
    assert "because stacks.txt:3: File <b>x</b>" in text
    assert "fix: Align versions." in text


def test_a_cause_that_is_not_certain_is_only_probable() -> None:
    unsure = Verdict(None, "killed", causes=[Cause("native.segv", 0.5)])
    assert verdict_view.text(unsure).startswith("Probable cause: ")
    assert "the most probable cause, 50 % sure" in verdict_view.view(unsure).html


def test_an_unknown_cause_says_what_is_missing() -> None:
    view = verdict_view.view(Verdict(None, "failed", missing=["the log", "what caused its error, `E: <b>`"]))
    assert "<span>what caused its error, <code>E: &lt;b&gt;</code></span>" in view.html
    assert "The cause is not known" in view.html
    assert "not known: the log" in view.text


def test_an_error_of_the_program_itself_is_a_cause_and_not_missing() -> None:
    own = "nothing from outside: this is the program's own error, `KeyError: '<a>'` (traceback.txt line 19)"
    view = verdict_view.view(Verdict(None, "failed", missing=[own, "the log"]), folder="runs/x")
    assert "<code>KeyError: &#x27;&lt;a&gt;&#x27;</code> (traceback.txt line 19)</p>" in view.html
    assert "not known" in view.html and "the log" in view.html and "nothing that was seen" not in view.html.lower()
    assert view.html.count("KeyError") == 1
    assert view.text.startswith("An error of the program itself, nothing from outside: `KeyError")
    alone = verdict_view.view(Verdict(None, "failed", missing=[own])).html
    assert "not known" not in alone and "traceback.txt" not in alone


def test_what_an_experiment_tells_is_no_command() -> None:
    unsure = Verdict(None, "killed", causes=[Cause("native.segv", 0.5, experiment="dmesg | tail    (`oom`: memory)")])
    html = verdict_view.view(unsure).html
    assert "<code>dmesg | tail</code> (<code>oom</code>: memory)" in html
