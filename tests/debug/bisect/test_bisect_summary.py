from __future__ import annotations

from pathlib import Path
from typing import Any

from ocrlab.debug.bisect import bisect_summary, factors
from ocrlab.debug.bisect.bisect_job import BisectJob, Limits
from ocrlab.debug.bisect.factors import Factor
from ocrlab.debug.bisect.search import Answer, Search


def search_of(count: int, ends: dict[int, bool | None]) -> Search:
    return Search(count, lambda run: None, runs=list(ends.items()))


def hunted(ends: list[tuple[int, bool]], status: str = "found") -> tuple[BisectJob, Answer, Search]:
    flips = factors.parse_factors(["workers=4:0", "amp=1:0"])
    rows: list[dict[str, Any]] = []
    for run, failed in ends:
        unchanged = [factor.name for index, factor in enumerate(flips) if run >> index & 1]
        flipped = [factor.name for index, factor in enumerate(flips) if not run >> index & 1]
        text = {"ended": "failed" if failed else "passed", "told": "KeyError: 'x'" if failed else "passed"}
        rows.append({"run": run, "pages": None, "seconds": 2.0, "known": False, **text,
                     "as it was": unchanged, "flipped": flipped})  # fmt: skip
    job = BisectJob(
        flips, [1.0, 1.0], lambda *_: ([], {}), Path(), Limits(runs=10), "k", failure="KeyError: 'x'", rows=rows
    )
    job.used = len(rows)
    return job, Answer(status, (0,) if status == "found" else ()), search_of(2, dict(ends))


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


def test_the_first_run_says_how_long_all_will_take_and_what_is_suspected() -> None:
    job, *_ = hunted([(3, True)])
    job.suspicion = [1.0, 3.0]
    assert (
        bisect_summary.first_run(job)
        == "each run takes 2 s: about 6 s for one culprit, 12 s for two; suspected first: amp"
    )


def test_an_empty_side_reads_without_or_not_set() -> None:
    amp, path = factors.parse_factors(["amp=--amp:", "PATH=:x"])
    assert (bisect_summary.flip_text(amp), bisect_summary.flip_text(path)) == ("--amp -> without", "not set -> x")
    flips = factors.parse_factors(["amp=--amp:", "XLA=fast:"])
    job = BisectJob(flips, [1.0, 1.0], lambda *_: ([], {}), Path(), Limits(), "k", failure="KeyError: 'x'")
    text = bisect_summary.sentence(job, Answer("found", (0, 1)), search_of(2, {3: True, 1: False, 2: False}))
    assert "Until it is fixed: without --amp or XLA not set." in text


def test_a_culprit_with_its_evidence_and_its_fix() -> None:
    text = bisect_summary.sentence(*hunted([(3, True), (1, True), (2, False)]))
    assert text.startswith("KeyError: 'x' is caused by workers (4): 2 of 2 runs with it failed, 0 of 1 without it")
    assert "passed with nothing else changed" in text
    assert "Until it is fixed: workers=0. This assumes that it always fails" in text


def test_what_is_not_settled_says_how_to_go_on() -> None:
    job, answer, search = hunted([(3, True)], "undecided")
    assert "--runs 20 continues from here" not in bisect_summary.sentence(job, answer, search), (
        "there were runs left, but no time"
    )
    job.used = 10
    assert "--runs 20 continues from here" in bisect_summary.sentence(job, answer, search)


def test_runs_that_halve_samples_do_not_count_as_confirmation() -> None:
    job, answer, search = hunted([(3, True), (1, True), (2, False)])
    job.settled_after, job.proofs = 2, 1
    job.rows += [{**job.rows[0], "pages": [0, 1]}] * 5
    assert "Found after 2 runs, and confirmed by 1 more" in bisect_summary.sentence(job, answer, search)
    assert bisect_summary.record(job, answer, search, None, ["a", "b"])["runs"]["to_make_sure"] == 1


def test_without_a_run_and_over_its_time() -> None:
    assert bisect_summary.sentence(*hunted([], "undecided")).startswith(
        "Nothing is known yet: nothing was run. The time is up"
    )
    job, answer, search = hunted([(3, False)], "otherwise")
    job.rows[0] |= {"ended": "not done", "told": "not done in its time", "flipped": []}
    assert bisect_summary.sentence(job, answer, search).endswith(
        "the run was not done in its time; --timeout gives it more time."
    )


def test_many_factors_have_letters_so_that_the_table_fits_a_terminal() -> None:
    job, *_ = hunted([(3, True)])
    assert bisect_summary.legend(job) == "" and bisect_summary.table(job)[0][1:3] == ["workers", "amp"]
    job.factors = factors.parse_factors([f"setting_{number}=1:0" for number in range(30)])
    assert bisect_summary.legend(job).startswith("A setting_0, B setting_1, ")
    end = "Z setting_25, A1 setting_26, A2 setting_27, A3 setting_28, A4 setting_29; x is unchanged, - is changed"
    assert bisect_summary.legend(job).endswith(end)
    assert bisect_summary.table(job)[1][:4] == ["1", "x", "x", "-"]


def test_every_other_ending_has_its_sentence() -> None:
    for status, words in [
        ("none", "None of these"),
        ("never", "did not fail in 1 run"),
        ("misfit", "more is involved"),
        ("otherwise", "Stopped"),
    ]:
        assert words in bisect_summary.sentence(*hunted([(3, status != "never")], status))


def test_lines_and_table_have_a_row_a_run() -> None:
    job, *_ = hunted([(3, True), (2, False), (0, False)])
    assert bisect_summary.line(1, job.rows[0]) == "run 1: failed (KeyError: 'x') with everything unchanged, 2.0 s"
    assert bisect_summary.line(3, job.rows[2]) == "run 3: passed with everything changed, 2.0 s"
    assert bisect_summary.table(job)[1][:3] == ["1", "unchanged", "unchanged"]
    assert bisect_summary.table(job)[2][1:3] == ["-", "unchanged"]


def test_data_without_page_names_refers_to_samples_check() -> None:
    flips = [Factor("data", "scans", "synthetic pages", job={"synthetic": True})]
    job = BisectJob(flips, [1.0], lambda *_: ([], {}), Path(), Limits(), "k", failure="KeyError: 'x'")
    text = bisect_summary.sentence(job, Answer("found", (0,)), search_of(1, {1: True, 0: False}))
    assert "Until it is fixed: other pages (ocrlab samples check scans looks at these)." in text


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
