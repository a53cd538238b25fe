"""The values of a failing line are read without calling the program's code, without a leak and without a delay."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from ocrlab.debug.watch import failing_values

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
        made = time.process_time()
        failing_values.collect(error, lambda name: name == __file__)
    assert time.process_time() - made < max(0.1, 10 * (made - began))

    def deep(depth: int) -> object:
        return deep(depth - 1) if depth else 1 / 0

    assert len(failing(lambda: deep(500))) <= failing_values.MAX_FRAMES


def test_long_texts_are_cut() -> None:
    text = "a" * 100_000

    def fail() -> object:
        return text[0] / 2

    frame = failing(fail)[-1]
    assert len(frame["values"]["text"]["text"]) <= failing_values.MAX_TEXT
    assert frame["values"]["text"]["length"] == 100_000
