"""What fields take, in words."""

from __future__ import annotations

from types import NoneType
from typing import Annotated, Literal

import pytest
from pydantic import Field

from ocrlab.config.fields import accepts, describe


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int, "a whole number"),
        (bool, "true or false"),
        (str | None, "text or none"),
        (Annotated[int, Field(ge=16, le=64, multiple_of=4)], "a whole number from 16 to 64, a multiple of 4"),
        (Annotated[float, Field(gt=0, lt=1)], "a number above 0 and below 1"),
        (Annotated[float, Field(ge=0)] | None, "a number at least 0 or none"),
        (Literal["a", "b"], "one of a, b"),
        (Literal["exact"] | Annotated[float, Field(gt=0)], "exact or a number above 0"),
        (tuple[Annotated[float, Field(ge=0, le=1)], float], "two numbers low, high with low <= high, each from 0 to 1"),
        (Annotated[str, Field(min_length=1)], "text that is not empty"),
    ],
)
def test_describe(annotation, words):
    assert describe(annotation) == words


def test_accepts_looks_inside_unions_and_annotations():
    assert accepts(Annotated[int | None, Field(ge=1)], NoneType)
    assert accepts(Literal["auto"] | bool, bool)
    assert accepts(tuple[float, float], tuple)
    assert not accepts(Annotated[int, Field(ge=1)], bool)
