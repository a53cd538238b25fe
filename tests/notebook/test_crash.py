"""The sections of the crash notebook, with verdicts made by hand; tests/notebooks/test_executed.py runs the whole."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ocrlab.errors import ConfigError, DataError
from ocrlab.fault_lab import FAULTS
from ocrlab.notebook import crash
from ocrlab.notebook.crash import Caught
from ocrlab.records import Cause, Verdict

FAULT = replace(FAULTS["segv"], does="reads <null>")
NAMED = Verdict(None, "killed", None, "SIGSEGV", None, [Cause("native.segv", 0.84), Cause("build.abi", 0.4)])
RIGHT = Caught(NAMED, FAULT, "runs/x")
WRONG = Caught(NAMED, replace(FAULT, causes=("host.shm",)), "runs/x")
UNKNOWN = Caught(Verdict(None, "killed"), FAULT, "runs/x")
OPENED = Caught(NAMED, None, "log.txt")


def test_the_truth_stands_beside_it() -> None:
    html = crash.compared(RIGHT).html
    assert "The cause that was planted is the cause that was named" in html
    assert "reads &lt;null&gt;" in html
    assert "Another cause was planted" in crash.compared(WRONG).text
    assert "no cause" in crash.compared(UNKNOWN).text
    assert "Nobody planted this one" in crash.compared(OPENED).html


@pytest.mark.parametrize(
    ("caught", "judged"), [(RIGHT, (1.0, 1.0)), (WRONG, (0.0, 1.0)), (UNKNOWN, (0.0, 1.0)), (OPENED, (0.84, 0.8))]
)
def test_it_is_judged_by_the_truth_or_by_how_sure_it_is(caught: Caught, judged: tuple[float, float]) -> None:
    outcomes: list[Any] = []
    lab: Any = SimpleNamespace(outcome=lambda metric, value, limit, warn=None: outcomes.append((value, limit)))
    crash.judge(lab, caught)
    assert outcomes == [judged]


def test_the_lab_is_listed_and_a_wrong_name_gets_the_nearest() -> None:
    view = crash.faults()
    fail = [fault for fault in FAULTS.values() if fault.ends != "healthy"]
    gpu = [fault for fault in fail if "gpu" in fault.needs]
    healthy = len(FAULTS) - len(fail)
    assert 0 < len(gpu) < len(fail) and healthy > 0
    assert f"{len(fail)} programs that really fail ({len(gpu)} need a GPU) and {healthy} healthy ones" in view.text
    assert "segv" in view.text
    with pytest.raises(ConfigError, match="Did you mean segv"):
        crash.caught(SimpleNamespace(), "segw", "", "", 5.0)  # type: ignore[arg-type]


def test_an_incident_is_opened(tmp_path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("Fatal Python error: Segmentation fault\n")
    caught = crash.caught(SimpleNamespace(), "", "", str(log), 5.0)  # type: ignore[arg-type]
    assert caught.verdict.causes[0].id == "native.segv"
    assert "native.segv" in crash.verdict(caught).html
    with pytest.raises(DataError):
        crash.caught(SimpleNamespace(), "", "", str(tmp_path / "none.txt"), 5.0)  # type: ignore[arg-type]
