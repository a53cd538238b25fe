"""A bisect from its runs to its sentence, over small programs that really run."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ocrlab.debug.bisect import bisect_job, bisect_summary, factors, program_trials, sample_search, search
from ocrlab.debug.bisect.bisect_job import BisectJob, Limits
from ocrlab.debug.bisect.search import Answer, Search
from ocrlab.errors import RunError

BUGGY = """
import os, signal, sys
given = dict(word.split("=") for word in sys.argv[1:] if "=" in word)
def on(name): return given.get(name, os.environ.get(name)) == "1"
"""


def hunted(tmp_path, body, names="abcd", limits=None, **more):
    """Bisect a small program whose factors are words name=1 or name=0."""
    flips = factors.parse_factors([f"{name}=1:0" for name in names])
    words = [sys.executable, "-S", "-c", BUGGY + body, *(f"{name}={{{name}}}" for name in names)]
    start = program_trials.starter(words, flips)
    job = BisectJob(flips, [1.0] * len(flips), start, tmp_path / "bisect", limits or Limits(timeout=20), "key", **more)
    return job, *bisect_job.run_bisect(job, lambda row: None)


def named(job: BisectJob, answer: Answer) -> set[str]:
    return {job.factors[index].name for index in answer.items}


def test_a_single_culprit_gives_a_sentence_and_a_record(tmp_path: Path) -> None:
    job, answer, runs = hunted(tmp_path, "if on('b'): raise KeyError('no page 17')")
    assert answer.status == "found"
    assert named(job, answer) == {"b"}
    assert job.used <= 4
    text = bisect_summary.sentence(job, answer, runs)
    assert text.startswith("KeyError: 'no page 17'. Caused by b (1): ")
    assert "Until it is fixed: b=0." in text
    record = bisect_summary.record(job, answer, runs)
    assert record["culprits"] == ["b"]
    assert len(record["table"]) == job.used == record["runs"]["used"]
    assert json.loads(json.dumps(record))["schema"] == 1


def test_two_that_only_fail_together(tmp_path: Path) -> None:
    job, answer, runs = hunted(tmp_path, "if on('a') and on('d'): sys.exit(3)")
    assert (answer.status, answer.kind, named(job, answer)) == ("found", "all", {"a", "d"})
    assert "together" in bisect_summary.sentence(job, answer, runs)
    assert "a=0 or d=0" in bisect_summary.sentence(job, answer, runs)


def test_another_failure_is_no_evidence_and_is_reported_apart(tmp_path: Path) -> None:
    job, answer, runs = hunted(
        tmp_path, "if not on('c'): raise TypeError('c is needed')\nif on('b'): raise KeyError('bug')"
    )
    assert named(job, answer) == {"b"}
    assert bisect_summary.record(job, answer, runs)["other_failures"] == ["TypeError: c is needed"]
    assert {row["ended"] for row in job.rows} == {"failed", "passed", "otherwise"}


def test_none_of_the_factors_and_no_failure_at_all(tmp_path: Path) -> None:
    job, answer, runs = hunted(tmp_path / "one", "raise KeyError('always')", "ab")
    assert answer.status == "none"
    assert "None of these" in bisect_summary.sentence(job, answer, runs)
    job, answer, runs = hunted(tmp_path / "two", "pass", "ab")
    assert answer.status == "never"
    assert job.used == search.OFTEN
    assert "did not fail" in bisect_summary.sentence(job, answer, runs)


def test_an_undecided_bisect_goes_on_from_its_ledger(tmp_path: Path) -> None:
    body = "if on('a') and on('d'): sys.exit(3)"
    job, answer, runs = hunted(tmp_path, body, limits=Limits(runs=3))
    assert answer.status == "undecided"
    assert "Not enough runs" in bisect_summary.sentence(job, answer, runs)
    again, answer, _ = hunted(tmp_path, body)
    assert answer.status == "found"
    assert again.used == len(again.rows) - 3, "three were known"


@pytest.mark.slow
def test_a_signal_and_a_hang_are_failures_of_their_own(tmp_path: Path) -> None:
    body = "import time\nif on('a'): os.kill(os.getpid(), signal.SIGSEGV)\nif on('b'): time.sleep(60)"
    job, answer, _runs = hunted(tmp_path, body, "ab", Limits(timeout=10))
    assert named(job, answer) == {"a"}
    assert [row["what"] for row in job.rows if row["ended"] == "otherwise"] in ([], ["hang"])


def test_pages_are_halved_by_name(tmp_path: Path) -> None:
    flips = factors.parse_factors(["data=1:0"])

    def start(run: int, pages: list[int] | None, place: Path) -> tuple[list[str], dict[str, str]]:
        fails_now = run & 1 and (pages is None or 5 in pages)
        return [sys.executable, "-S", "-c", f"raise SystemExit({3 if fails_now else 0})"], {}

    job = BisectJob(flips, [1.0], start, tmp_path / "bisect", Limits(timeout=20), "key")
    answer, runs = bisect_job.run_bisect(job, lambda row: None)
    culprits = sample_search.find_culprits(job, 8, 1.0, lambda row: None)
    assert (culprits.groups, culprits.ending) == ([[5]], "found")
    names = [f"page_{index}" for index in range(8)]
    record = bisect_summary.record(job, answer, runs, culprits, names)
    words = "Caused by the page page_5 (it fails without the others; all others pass): 1 of 1 run with it failed"
    assert words in record["sentence"]
    assert "Until it is fixed: leave out page page_5." in record["sentence"]
    assert [names[5]] in [row["pages"] for row in record["table"]]


def test_a_torn_line_of_the_ledger_is_left_out_and_a_bisect_without_an_answer_says_why(tmp_path: Path) -> None:
    job = BisectJob(factors.parse_factors(["a=1:0"]), [1.0], lambda *_: ([], {}), tmp_path, Limits(), "key")
    good = {"key": "key", "run": 1, "pages": None, "what": "", "told": "passed", "seconds": 1.0, "place": "x"}
    lines = [json.dumps(good), json.dumps({**good, "key": "another"}), '{"key": "key", "ru', "[]", '{"key": "key"}']
    (tmp_path / bisect_job.LEDGER).write_text("\n".join(lines))
    assert len(bisect_job.read_ledger(job)) == 1
    (tmp_path / bisect_job.LEDGER).unlink()
    (tmp_path / bisect_job.LEDGER).mkdir()
    with pytest.raises(RunError, match="cannot be used"):
        bisect_job.read_ledger(job)
    runs = Search(1, lambda run: None)
    assert bisect_summary.sentence(job, Answer("undecided"), runs).startswith("Nothing is known yet: nothing was run.")
    job.rows.append({"ended": "not done", "told": "not done in its time", "flipped": []})
    assert "; --timeout gives it more time." in bisect_summary.sentence(job, Answer("otherwise"), runs)


def test_an_unfinished_bisect_elsewhere_is_gone_on_with(tmp_path: Path) -> None:
    body = "if on('a'): sys.exit(3)"
    _, answer, _ = hunted(tmp_path / "one", body, "ab", Limits(runs=2))
    assert answer.status == "undecided"
    second, answer, _ = hunted(
        tmp_path / "two", body, "ab", earlier_folders=[tmp_path / "one" / "bisect", tmp_path / "no"]
    )
    assert answer.status == "found"
    assert [row["known"] for row in second.rows][:2] == [True, True]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_it_can_be_interrupted_and_leaves_nobody_behind(tmp_path: Path, number: int) -> None:
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from ocrlab.cli.streams_and_signals import stop_signals
from ocrlab.debug.bisect import bisect_job, factors, program_trials
from ocrlab.debug.bisect.bisect_job import BisectJob, Limits
flips = factors.parse_factors(["a=1:0"])
words = [sys.executable, "-S", "-c", "import time, os; open('pid', 'w').write(str(os.getpid())); time.sleep(60)"]
with stop_signals():
    start = program_trials.starter(words, flips)
    bisect_job.run_bisect(BisectJob(flips, [1.0], start, Path("bisect"), Limits(timeout=50), "k"), print)
"""
    child = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stderr=subprocess.PIPE)
    end = time.monotonic() + 60
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < end
        assert child.poll() is None, child.communicate()[1].decode()
        time.sleep(0.05)
    child.send_signal(number)
    child.communicate(timeout=60)
    assert child.returncode != 0
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_the_first_failure_orders_the_factors_where_no_verdict_has(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d", "lr"]  # of four there would be no run to spare: see test_search.py
    job, answer, _runs = hunted(tmp_path, "if on('lr'): raise ValueError('loss is nan')", names)
    assert named(job, answer) == {"lr"}
    assert job.suspicion[4] > job.suspicion[0] == 1.0
    assert job.used <= 3, "five without a suspicion"


def test_an_answer_is_put_to_the_proof_where_runs_are_short(tmp_path: Path) -> None:
    job, answer, runs = hunted(tmp_path / "one", "if on('b'): raise KeyError('x')", limits=Limits(timeout=20, again=3))
    plain, _, _ = hunted(tmp_path / "two", "if on('b'): raise KeyError('x')")
    assert (named(job, answer), job.proofs, job.used) == ({"b"}, 3, plain.used + 3)
    assert "Found after 4 runs, and confirmed by 3 more" in bisect_summary.sentence(job, answer, runs)


def test_what_fails_now_and_then_whatever_is_set_is_seldom_blamed_on_a_factor(tmp_path, monkeypatch):
    dice, wrong = random.Random(1), 0

    def perform_run(job: BisectJob, run: int, old: Any) -> dict[str, Any]:
        if len(job.rows) >= 60:
            raise bisect_job.LimitReached("runs")
        job.rows.append({"seconds": 1.0, "ended": "failed" if dice.random() < 0.5 else "passed"})
        return job.rows[-1]

    monkeypatch.setattr(bisect_job, "perform_run", perform_run)
    for _ in range(60):
        flips = factors.parse_factors([f"f{n}=1:0" for n in range(4)])
        job = BisectJob(flips, [1.0] * 4, lambda *_: ([], {}), tmp_path, Limits(again=3), "k")
        answer, _ = bisect_job.run_bisect(job, lambda row: None)
        wrong += answer.status == "found"
    assert wrong <= 4, "18 without the proof"


def search_of(count: int, ends: dict[int, bool | None]) -> Search:
    return Search(count, lambda run: None, runs=list(ends.items()))


def test_the_plan_says_runs_and_time_before_anything_runs() -> None:
    flips = factors.parse_factors([f"f{index}=1:0" for index in range(8)])
    text = bisect_summary.plan(flips, Limits(40))
    assert "needs 5 runs for one culprit, 12 for a pair" in text
    assert "suspects" not in text, "of eight no run is to spare"
    three = bisect_summary.plan(flips[:3], Limits(40))
    assert "needs 4 runs for one culprit (fewer if the verdict suspects it), 8" in three
    assert "at most 40" in text
    assert "200 min in total" in text
    assert "60 s in total" in bisect_summary.plan(flips, Limits(40, seconds=60.0))
    assert "pages" not in text
    assert bisect_summary.plan([], Limits(40), 40, "line").startswith("40 lines are halved: up to 10 runs for one")


def test_runs_that_ended_otherwise_are_explained_with_the_answer() -> None:
    flips = factors.parse_factors(["a=1:0", "b=1:0", "c=1:0"])
    beside = "; changing a alone ends in another way, but with b changed too it fails with a unchanged and passes with"
    unknown = "; whether b is needed too is unknown: without it the program ends in another way"
    for ends, answer, words in [
        ({7: True, 6: None, 5: True, 4: False, 1: True}, Answer("found", (0,)), beside),
        ({7: True, 6: False, 5: None, 1: None, 3: True}, Answer("found", (0,), unproved=(1,)), unknown),
    ]:
        job = BisectJob(flips, [1.0] * 3, lambda *_: ([], {}), Path(), Limits(), "k", failure="KeyError: 'x'")
        assert words in bisect_summary.sentence(job, answer, search_of(3, ends))
