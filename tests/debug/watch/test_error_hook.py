"""Errors that a program hides, under `ocrlab watch` from beginning to end; what the hook reads and where it is put."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ocrlab.debug.watch import error_hook, failing_values
from ocrlab.debug.watch.supervisor import Options, watch

PROGRAM = """
import sys
def step():
    raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)")
try:
    step()
except Exception as error:
    try:
        open("no/such/folder/err.txt", "w").write(str(error))
    except OSError as second:
        print("error:", second)
        sys.exit(1)
"""


def watched(folder: Path, program: str, *, inside: bool = True) -> tuple[str, dict[str, object]]:
    """Run a program and return what was printed, and the verdict."""
    (folder / "train.py").write_text(program, encoding="utf-8")
    output = bytearray()
    options = Options(folder / "run", inside=inside)
    watch([sys.executable, str(folder / "train.py")], options, output=lambda _stream, data: output.extend(data))
    verdict = folder / "run" / "incident" / "verdict.json"
    return output.decode(), json.loads(verdict.read_text(encoding="utf-8")) if verdict.exists() else {}


def first(verdict: dict[str, object]) -> object:
    causes = verdict["causes"]
    assert isinstance(causes, list)
    return causes[0]["id"] if causes else None


def test_the_first_error_is_the_cause_and_the_handler_is_named(tmp_path, capsys):
    output, verdict = watched(tmp_path, PROGRAM)
    assert output.startswith("error: [Errno 2]") and first(verdict) == "user.shape"
    text = (tmp_path / "run" / "incident" / error_hook.ERRORS).read_text(encoding="utf-8")
    assert "in step" in text and text.index("RuntimeError") < text.index("FileNotFoundError")
    assert "failed itself, in <module> (train.py:9)" in error_hook.hid(tmp_path / "run" / "incident")


def test_a_cancelled_task_is_not_the_first_error(tmp_path: Path) -> None:
    """As nbclient does where a kernel dies: it cancels its own task, and raises what happened `from None`."""
    program = """
import asyncio
async def execute():
    try:
        raise asyncio.CancelledError
    except asyncio.CancelledError:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)") from None
asyncio.run(execute())
"""
    assert first(watched(tmp_path, program)[1]) == "user.shape"


def test_from_outside_nothing_is_put_into_the_program(tmp_path: Path) -> None:
    code = "import os, sys\nprint(os.environ.get('PYTHONPATH'), sys.exit)\n"
    output, verdict = watched(tmp_path, code + PROGRAM, inside=False)
    assert "ocrlab" not in output.partition("\n")[0].rpartition(" ")[0] and "built-in" in output
    assert first(verdict) == "io.missing" and not (tmp_path / "run" / "incident" / error_hook.ERRORS).exists()


def test_torn_lines_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "8-errors.txt").write_bytes(b"{'kind': 'exit', 'pid': 8, 'time': 2.0, 'chain': []}\n{'kind': 'han")
    (tmp_path / "9-errors.txt").write_bytes(b"__import__('os')\n[]\n{'kind': 'times', 'pid': 9, 'time': 1.0}\n\xff\n")
    assert [record["pid"] for record in error_hook.read(tmp_path)] == [9, 8]
    assert (
        error_hook.hidden_errors(error_hook.read(tmp_path), "", 8) == ({}, {})
        and error_hook.swallowed(error_hook.read(tmp_path)) == ""
    )


def test_a_worker_that_only_ended_is_reported_with_its_signal() -> None:
    children = [{"kind": "children", "pid": 1, "time": 1.0, "ended": [(11, -9), (12, 3), (13, -15)]}]
    log = "RuntimeError: DataLoader worker (pid(s) 11, 12) exited unexpectedly\n"
    assert error_hook.exits(children, log) == [
        {"pid": 11, "role": "worker", "exit_code": None, "signal": "SIGKILL"},
        {"pid": 12, "role": "worker", "exit_code": 3, "signal": None},
    ]
    assert error_hook.exits(children, "RuntimeError: another\n") == []


def test_a_worker_that_left_while_its_tensors_were_fetched_is_reported_by_its_signal() -> None:
    log = '  File "/usr/lib/python3.11/multiprocessing/resource_sharer.py", line 57, in detach\nConnectionResetError\n'
    ended = [(11, -9), (12, -15), (13, 1)]  # 12 was ended by whoever left, 13 may have failed of the same
    children = [{"kind": "children", "pid": 10, "time": 1.0, "ended": ended}]
    assert [(worker["pid"], worker["signal"]) for worker in error_hook.exits(children, log)] == [(11, "SIGKILL")]


ODD = """
import sys
class Odd(Exception):
    args = property(lambda self: 1 / 0)
try:
    raise Odd
except Odd:
    sys.exit(3)
"""


def test_what_our_own_code_fails_at_inside_is_logged_and_the_program_never_sees_it(watched) -> None:
    done = watched(ODD)
    assert (done.status, done.out, "ZeroDivisionError" in done.err) == (3, b"", False)
    log = done.folder / "flight" / "ocrlab-errors.log"
    text = log.read_text()
    assert "inside of process" in text and "Traceback" in text and "ZeroDivisionError" in text
    assert log.stat().st_mode & 0o077 == 0


def test_an_inside_that_cannot_be_imported_is_logged(tmp_path: Path) -> None:
    env = {**os.environ, "OCRLAB_WATCH": str(tmp_path), **error_hook.environment(tmp_path, {})}
    (tmp_path / "hook" / f"{error_hook.MODULE}.py").write_text("import no_such_module_at_all")
    done = subprocess.run(
        [sys.executable, "-c", "print('as ever')"], env=env, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("as ever\n", "")
    (tmp_path / "run" / "flight").mkdir(parents=True)
    error_hook.read(tmp_path, tmp_path / "run")
    assert "no_such_module_at_all" in (tmp_path / "run" / "flight" / "ocrlab-errors.log").read_text()


torch = pytest.importorskip("torch")


class Hostile:
    """Everything that a value may do when it is looked at."""

    def __repr__(self) -> str:
        raise AssertionError("repr was called")

    def __len__(self) -> int:
        raise AssertionError("len was called")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")

    @property
    def shape(self) -> tuple[int, ...]:
        raise AssertionError("shape was asked for")

    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise AssertionError("__class__ was asked for")


class Subclass(torch.Tensor):  # type: ignore[misc]
    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise AssertionError("a tensor subclass was used")


def failing(function: Callable[[], object]) -> list[dict[str, Any]]:
    """Return what is read of the exception that a function raises."""
    try:
        function()
    except Exception as error:
        start = time.monotonic()
        frames = failing_values.collect(error, lambda file: file == __file__)
        assert time.monotonic() - start < 10 * failing_values.SECONDS  # on a loaded machine
        return frames
    raise AssertionError("nothing failed")


def test_shapes_types_ranges_and_modules() -> None:
    table, ids = torch.nn.Embedding(5, 2), torch.tensor([1, 7, 3])
    pages = {"image": torch.zeros(2, 3), "count": 4}

    def look_up() -> object:
        return table(ids), pages

    frame = next(frame for frame in failing(look_up) if frame["function"] == "look_up")
    assert frame["values"]["ids"] | {"made_by": None} == frame["values"]["ids"]
    assert (frame["values"]["ids"]["min"], frame["values"]["ids"]["max"]) == (1, 7)
    assert frame["values"]["ids"]["argmax"] == 1
    assert frame["values"]["table"]["text"] == "Embedding(5, 2)"
    assert frame["values"]["pages"]["keys"] == ["image", "count"]
    assert frame["code"] == "return table(ids), pages"


def test_no_code_of_the_program_is_called() -> None:
    hostile, subclass = Hostile(), torch.zeros(2).as_subclass(Subclass)
    holder = [hostile, subclass, {"key": hostile}]

    def fail() -> object:
        return 1 / 0, hostile, subclass, holder

    frame = failing(fail)[-1]
    assert frame["values"]["hostile"]["type"] == "Hostile"
    assert frame["values"]["subclass"]["type"] == "Subclass"
    assert frame["values"]["holder"]["length"] == 3


def test_ten_thousand_locals_and_a_long_chain_end_in_time() -> None:
    source = "\n".join(f"x{number} = {number}" for number in range(10_000)) + "\n1 / 0"
    frames = failing(lambda: exec(compile(source, __file__, "exec"), {}))
    assert len(repr(frames)) <= failing_values.MAX_RECORD
    lines = "\n".join(f"    v{number} = list(range(50))" for number in range(10_000))
    names: dict[str, Any] = {}
    exec(compile(f"def large():\n{lines}\n    return v0 + v9999 + 1", __file__, "exec"), names)
    began = time.process_time()
    try:
        names["large"]()
    except TypeError as error:
        raised_at = time.process_time()
        failing_values.collect(error, lambda name: name == __file__)
    assert time.process_time() - raised_at < max(0.1, 10 * (raised_at - began))

    def deep(depth: int) -> object:
        return deep(depth - 1) if depth else 1 / 0

    assert len(failing(lambda: deep(500))) <= failing_values.MAX_FRAMES
