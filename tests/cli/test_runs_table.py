"""The table of runs fits every terminal, hides no control character, and is whole in a pipe."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ocrlab.cli import runs_table
from ocrlab.reports.run_history import query
from ocrlab.reports.run_history.fingerprint import fingerprint
from ocrlab.reports.run_history.run_list import Run

WORSE = fingerprint({"type": "KeyError", "message": "x", "your_code": "train.py:3 read_every_page_of_the_split"})


def run(name: str, **more: object) -> Run:
    first = Run(f"runs/{name}", name, "success", "2026-11-01T10:00:00+00:00", None, 61.0, {"hmean@0.5": 0.5}, True)
    return replace(first, **more)  # type: ignore[arg-type]


RUNS = [
    run("20261101-100000-a", settings={"optim.lr": 0.1, "encoder": "resnet18", "seed": 1}),
    run("20261101-100001-b", settings={"optim.lr": 0.1, "encoder": "resnet50", "seed": 2}),
    run("20261101-100002-c", settings={"optim.lr": 0.2, "encoder": "resnet18", "seed": 3}, final=False),
    run("20261101-100003-d", status="failed", failure=WORSE, why=WORSE.title, metrics={}, seconds=None),
    run("20261101-100004-" + "e" * 90, status="killed", seconds=3 * 3600 + 62.9),
]


def page(width: int | None, runs: list[Run] = RUNS) -> str:
    return runs_table.page(runs, runs, runs, query.group_failures(runs), width)


@pytest.mark.parametrize("width", [40, 60, 80, 119, 120, 160, 300])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = page(width).splitlines()
    assert max(map(len, lines)) <= width
    assert not any(line != line.rstrip() for line in lines)


def test_what_stands_in_it() -> None:
    text = page(160)
    assert "0.5000" in text
    assert "(0.5000)" in text  # not final
    assert "3:01:02" in text
    assert "1:01" in text
    assert "most have: lr=0.1 encoder=resnet18\n" in text  # each seed is another one: none is usual
    assert "seed=2 encoder=resnet50" in text or "encoder=resnet50 seed=2" in text
    assert re.search(rf"{WORSE.id} +1  2026-11-01", text)
    assert text.endswith("5 runs: 3 success, 1 failed, 1 killed")
    assert "e…e" in text or "e" * 90 in text


def test_a_pipe_gets_everything_with_tabs() -> None:
    rows = [line.split("\t") for line in page(None).split("\n\n")[0].splitlines()]
    assert {len(row) for row in rows} == {8}
    assert rows[0][0] == "run"
    assert rows[5][0].endswith("e" * 90)
    assert rows[4][5:7] == [WORSE.id, WORSE.title]
    assert page(None).split("\n\n")[1].startswith("fingerprint\truns\tfirst")


def test_control_characters_of_a_stranger_are_not_printed() -> None:
    evil = run("20261101-\x1b[2J\x07", why="a\tb\nc\x9b31m", settings={"data": "\x1b]0;x", "seed": 9})
    for width in (80, None):
        text = page(width, [*RUNS, evil])
        assert not {"\x1b", "\x07", "\x9b"} & set(text)


def test_nothing_and_nothing_left() -> None:
    assert page(80, []) == "There are no runs here."
    assert runs_table.page(RUNS, [], [], [], 80) == "0 of 5 runs"
    assert runs_table.page(RUNS, RUNS, RUNS[:2], [], 80).endswith("3 more with --limit 0")


def test_long_cells_are_wrapped_between_words_and_end_after_three_lines() -> None:
    assert runs_table.wrap("aa bb cc", 5) == ["aa bb", "cc"]
    assert runs_table.wrap("aaaaaaaa", 5) == ["aaaa…"]
    assert runs_table.wrap("a b c d", 1) == ["a", "b", "…"]
    assert runs_table.cut("abcdefgh", 5, middle=True) == "ab…gh"
