"""The first error of a program that hid it, from what its Python wrote down; and programs that hid nothing."""

from pathlib import Path
from typing import Any

import pytest

from ocrlab.debug.diagnosis import hidden_errors
from ocrlab.debug.diagnosis.classify import classify
from ocrlab.records import Incident, Verdict

MAIN = 7
KINDS = {
    "FileNotFoundError": ["FileNotFoundError", "OSError", "Exception"],
    "KeyError": ["KeyError", "LookupError", "Exception"],
    "ModuleNotFoundError": ["ModuleNotFoundError", "ImportError", "Exception"],
    "UnboundLocalError": ["UnboundLocalError", "NameError", "Exception"],
}
MISSING = "[Errno 2] No such file or directory: 'logs/err.txt'"
DEVICE = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"


def link(kind: str, says: str, *frames: tuple[str, int, str], by: str = "context") -> dict[str, Any]:
    return {"type": kind, "kinds": KINDS.get(kind, [kind, "Exception"]), "says": says, "frames": frames, "by": by}


def record(kind: str, *chain: dict[str, Any], at: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "pid": MAIN, "time": at, "chain": list(chain), "key": ("f", int(at), "E"), **more}


def judge(records: list[dict[str, Any]], log: str) -> Verdict:
    texts, errors = {"log_tail.txt": log}, hidden_errors.errors_text(records, log, MAIN)
    facts = {"silent": hidden_errors.suspected_handler(records, log, MAIN)}
    return classify(
        Incident("failed", 1, texts={**texts, **({hidden_errors.FILE: errors} if errors else {})}, facts=facts)
    )


def source(folder: Path, text: str) -> str:
    (folder / "train.py").write_text(text, encoding="utf-8")
    return str(folder / "train.py")


REPORTS = """def train():
    try:
        step()
    except Exception as error:
        open("logs/err.txt", "w").write(str(error))
def step():
    raise RuntimeError("x")
"""


@pytest.mark.parametrize("by", ["context", "hidden"])
@pytest.mark.parametrize("end", ["uncaught", "exit"])
def test_the_error_whose_handler_failed_is_the_cause(tmp_path: Path, end: str, by: str) -> None:
    file = source(tmp_path, REPORTS)
    later = link("FileNotFoundError", MISSING, (file, 1, "<module>"), (file, 5, "train"), by=by)
    first = link("RuntimeError", DEVICE, (file, 3, "train"), (file, 7, "step"))
    verdict = judge([record(end, later, first)], f"FileNotFoundError: {MISSING}\n")
    assert [cause.id for cause in verdict.causes] == ["user.device"]
    assert verdict.causes[0].evidence[0].file == "errors.txt"
    assert verdict.ruled_out[0].id == "io.missing"
    assert any("in train (train.py:5)" in ruled.why for ruled in verdict.ruled_out)


def test_an_error_of_the_program_itself_has_its_place(tmp_path: Path) -> None:
    file = source(tmp_path, REPORTS)
    first = link("KeyError", "'loss'", (file, 3, "train"), (file, 7, "step"))
    verdict = judge([record("exit", link("FileNotFoundError", MISSING, (file, 5, "train")), first)], MISSING)
    assert verdict.causes == [] and "own error, `KeyError: 'loss'` in step (train.py:7)" in verdict.missing[0]


def test_what_python_shows_in_its_own_words_is_left_to_them(tmp_path: Path) -> None:
    file = source(tmp_path, REPORTS)
    first = link("RuntimeError", "x", (file, 3, "train"), (file, 7, "step"))
    end = record("uncaught", link("FileNotFoundError", MISSING, (file, 5, "train")), first)
    log = f'  File "{file}", line 7, in step\nRuntimeError: x\n\nFileNotFoundError: {MISSING}\n'
    assert hidden_errors.errors_text([end], log, MAIN) == ""


NARROW = """def read():
    try:
        return open("cache").read()
    except FileNotFoundError:
        return open("logs/err.txt").read()
def build():
    try:
        return MODELS[name]
    except KeyError:
        raise ValueError("unknown model") from None
try:
    import apex
except Exception:
    apex = None
open("logs/err.txt")
"""


@pytest.mark.parametrize("line", [5, 15])
def test_a_file_that_is_really_missing_stays_the_cause(tmp_path: Path, line: int) -> None:
    file = source(tmp_path, NARROW)
    cache = link("FileNotFoundError", "[Errno 2] No such file or directory: 'cache'", (file, 3, "read"))
    lacks = link("ModuleNotFoundError", "No module named 'apex'", (file, 12, "<module>"))
    chain = [link("FileNotFoundError", MISSING, (file, line, "read")), *([cache] if line == 5 else [])]
    end = record("uncaught", *chain, at=3.0)
    verdict = judge([record("handled", cache), record("handled", lacks), end], f"FileNotFoundError: {MISSING}\n")
    assert verdict.causes[0].id == "io.missing" and verdict.causes[0].confidence > 0.9


def test_an_error_that_was_translated_on_purpose_stays(tmp_path: Path) -> None:
    file = source(tmp_path, NARROW)
    key = link("KeyError", "'b'", (file, 8, "build"))
    end = record("uncaught", link("ValueError", "unknown model", (file, 10, "build"), by="hidden"), key)
    assert hidden_errors.errors_text([record("handled", key, at=0.5), end], "ValueError: unknown model", MAIN) == ""


WENT_ON = """def main():
    losses = []
    try:
        model = build()
        losses.append(1)
        save(model, path)
    except Exception:
        pass
    model.fit(sum(losses) / len(losses))
    open(path)
"""


@pytest.mark.parametrize(("last", "says", "line"), [
    ("UnboundLocalError", "cannot access local variable 'model' where it is not associated with a value", 9),
    ("NameError", "name 'model' is not defined", 9),
    ("ZeroDivisionError", "division by zero", 9),
    ("FileNotFoundError", "[Errno 2] No such file or directory: 'best.pt'", 10),
])  # fmt: skip
def test_the_swallowed_error_is_the_cause_of_a_missing_value(tmp_path: Path, last: str, says: str, line: int) -> None:
    file = source(tmp_path, WENT_ON)
    end = record("uncaught", link(last, says, (file, line, "main")), at=3.0, hears=True)
    log = f'Traceback (most recent call last):\n  File "{file}", line {line}, in main\n{last}: {says}\n'
    alone = judge([end], log)
    assert [cause.id for cause in alone.causes] == ["io.missing" if "File" in last else "user.code"]
    verdict = judge([record("handled", link("RuntimeError", DEVICE, (file, 4, "main"))), end], log)
    assert [cause.id for cause in verdict.causes] == ["user.device"]
    assert any("train.py:7 and went on" in ruled.why for ruled in verdict.ruled_out)
    old = judge([{**end, "hears": False}], log)  # before Python 3.12
    assert any("`except` in train.py:7" in ruled for ruled in [*old.missing, *(c.experiment for c in old.causes)])
    assert all(cause.confidence < 0.7 for cause in old.causes)


def test_the_error_of_a_handler_that_exits_is_shown_and_older_ones_are_not(tmp_path: Path) -> None:
    text = "def main():\n    try:\n        step()\n    except Exception as error:\n        return 1\nstep()\n"
    file = source(tmp_path, text)
    taken = record("handled", link("RuntimeError", DEVICE, (file, 3, "main")))
    assert [cause.id for cause in judge([taken], "failed\n").causes] == ["user.device"]
    other = record("handled", link("RuntimeError", DEVICE, (file, 6, "main")))
    assert hidden_errors.errors_text([other], "failed\n", MAIN) == ""


def test_an_error_that_the_output_does_not_show() -> None:
    end = record("uncaught", link("RuntimeError", DEVICE, ("gone.py", 3, "main")))
    assert judge([end], "lost sys.stderr\n").causes[0].id == "user.device"
    assert (
        hidden_errors.errors_text([{**end, "pid": 8}], "done\n", MAIN) == ""
    )  # another process, whose parent lives on


def test_a_syntax_error_is_shown_without_the_place_in_its_text() -> None:
    with pytest.raises(SyntaxError) as caught:
        compile("def f(:\n", "train.py", "exec")
    kinds = [kind.__name__ for kind in SyntaxError.__mro__]
    end = record("uncaught", {**link("SyntaxError", str(caught.value)), "kinds": kinds})
    shown = f'  File "train.py", line 1\n    def f(:\n          ^\nSyntaxError: {caught.value.msg}\n'
    assert hidden_errors.errors_text([end], shown, MAIN) == ""
    assert "does not show it" in hidden_errors.errors_text([end], "lost sys.stderr\n", MAIN)


def test_repeatedly_swallowed_errors_are_reported_after_exit_status_0(tmp_path: Path) -> None:
    file = source(tmp_path, "for x in y:\n    try:\n        f()\n    except Exception:\n        pass\n")
    taken = record("handled", link("RuntimeError", "x", (file, 3, "<module>")))
    times = {"kind": "times", "pid": MAIN, "time": 2.0, "key": taken["key"], "count": 12}
    assert "train.py:4 has swallowed 12 errors: RuntimeError: x" in hidden_errors.most_swallowed_error([taken, times])
    assert hidden_errors.most_swallowed_error([taken]) == ""
    (tmp_path / "train.py").write_text("try:\n    g()\nexcept KeyError:\n    pass\n", encoding="utf-8")
    narrow = record("handled", link("KeyError", "'x'", (str(tmp_path / "new.py"), 2, "<module>")))
    assert hidden_errors.most_swallowed_error([narrow, times]) == ""
