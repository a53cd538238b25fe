"""Programs that fail are explained in their own names, numbers and lines, with a fix."""

from __future__ import annotations

import os
import traceback
from dataclasses import replace
from pathlib import Path

import pytest

from ocrlab.debug.diagnosis import explanations
from ocrlab.debug.diagnosis.explanations import failure as failures
from ocrlab.debug.diagnosis.explanations.known_values import known_values
from ocrlab.debug.watch import failing_values
from tests.debug.diagnosis.explanations import notebooks
from tests.debug.diagnosis.explanations.library_programs import LIBRARY_FALSE_FRIENDS, LIBRARY_PROGRAMS
from tests.debug.diagnosis.explanations.programs import FALSE_FRIENDS, HEAD, PROGRAMS

ALL, ALL_FALSE_FRIENDS = PROGRAMS | LIBRARY_PROGRAMS, FALSE_FRIENDS | LIBRARY_FALSE_FRIENDS


def fail(text: str, folder: Path) -> failures.Failure:
    """Run a program that fails in this process, as `ocrlab watch` would see it."""
    file = folder / "program.py"
    file.write_text(HEAD + text)
    try:
        exec(compile(file.read_text(), str(file), "exec"), {"__name__": "__main__"})
    except Exception as error:
        error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
        values = failing_values.collect(error, lambda name: name == str(file))
        log = "".join(traceback.format_exception(error))
    else:
        raise AssertionError("the program did not fail")
    failure = failures.from_log(log)
    assert failure is not None
    return failures.with_sources(failures.from_values(failure, values))


@pytest.mark.parametrize("name", ALL)
def test_a_failing_program_is_explained(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, words = ALL[name]
    monkeypatch.chdir(tmp_path)
    result = explanations.explain(fail(program, Path(os.path.realpath(tmp_path))))
    assert result is not None
    _, explanation = result
    text = f"{explanation.text} {explanation.fix} {explanation.edit.after if explanation.edit else ''}"
    missing = [word for word in words if word not in text]
    assert not missing, text


@pytest.mark.parametrize("name", ALL_FALSE_FRIENDS)
def test_facts_that_do_not_belong_together_are_not_combined(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, words = ALL_FALSE_FRIENDS[name]
    monkeypatch.chdir(tmp_path)
    result = explanations.explain(fail(program, Path(os.path.realpath(tmp_path))))
    text = f"{result[1].text} {result[1].fix}" if result is not None else ""
    assert not [word for word in words if word in text], text


@pytest.mark.parametrize("name", [*notebooks.NOTEBOOKS, *notebooks.NOTEBOOK_FALSE_FRIENDS])
def test_a_notebook_is_explained_by_the_order_of_its_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A false friend has the words that its explanation must not have."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    order, cells, words = (notebooks.NOTEBOOKS | notebooks.NOTEBOOK_FALSE_FRIENDS)[name]
    failure = failures.from_notebook(notebooks.run(cells, order))
    assert failure is not None
    result = explanations.explain(failure)
    assert result is not None
    text = f"{result[1].text} {result[1].fix}"
    assert [word in text for word in words] == [name in notebooks.NOTEBOOKS] * len(words), text


VALUES = """
net = nn.Linear(4, 2)
sizes, names = {"low": 1}, ["a", "b"]

def score(x, table, key, api_key="abc123"):
    hidden = x.double() * 2
    return check(api_key, net, hidden, table, names, labels, key, None)

def check(*values):
    raise ValueError("odd")

labels = torch.tensor([3, -1])
score(torch.zeros(5, 4), sizes, "large")
"""


def test_what_is_known_of_the_values_of_a_failing_line(tmp_path: Path) -> None:
    failure = fail(VALUES, tmp_path)
    outer = replace(failure, frames=[f for f in failure.frames if f.function != "check"])
    line = HEAD.count("\n") + 7
    assert known_values(outer) == [
        "`net` is the module Linear(in_features=4, out_features=2, bias=True) and comes from `nn.Linear(4, 2)`"
        f" (program.py:{line - 5})",
        f"`hidden` is (5, 4) float64 and comes from `x.double() * 2` (program.py:{line - 1})",
        f"""`table` is a dict of 1 item with the keys 'low' and comes from `{{"low": 1}}` (program.py:{line - 4})""",
        f"""`names` is a list of 2 items (str) and comes from `["a", "b"]` (program.py:{line - 4})""",
        f"`labels` is (2,) int64, values -1 to 3 and comes from `torch.tensor([3, -1])` (program.py:{line + 5})",
        f"""`key` is the text 'large' and comes from `"large"` (program.py:{line + 6})""",
    ]
