"""What made the NaN of a batch while it was loaded: an operator of torch's, one of NumPy's, or nobody."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ocrlab.debug.replay.tracing import nonfinite_tracker


def anew(load: Callable[[int], Tensor]) -> nonfinite_tracker.Rebuild:
    def rebuild() -> tuple[list[str], Callable[[Sequence[int]], Any]]:
        samples = [load(index) for index in range(3)]
        return ["0", "1", "2"], lambda chosen: torch.stack([samples[position] for position in chosen])

    return rebuild


def whitened(index: int) -> Tensor:
    flat = torch.full((4,), 2.0) if index == 1 else torch.arange(4.0)
    return (flat - flat.mean()) / flat.std()


def whitened_by_numpy(index: int) -> Tensor:
    flat = np.full(4, 2.0, np.float32) if index == 1 else np.arange(4, dtype=np.float32)
    return torch.from_numpy((flat - flat.mean()) / flat.std())


def from_a_file(index: int) -> Tensor:
    return torch.from_numpy(np.full(4, np.nan, np.float32)) * 2 if index == 1 else torch.zeros(4)


def masked(index: int) -> Tensor:
    return torch.zeros(4).masked_fill(torch.arange(4) > index, float("nan"))


@pytest.mark.parametrize(("load", "message"), [
    (whitened, "`aten::div` at {file}:{line} whitened"),
    (whitened_by_numpy, "`NumPy, invalid value` at {file}:{line} whitened_by_numpy"),
    (from_a_file, ""),
    (masked, ""),
    (lambda index: torch.zeros(4), ""),
])  # fmt: skip
def test_the_operator_that_produced_it_is_reported_with_its_line(load: Callable[[int], Tensor], message: str) -> None:
    line = load.__code__.co_firstlineno + 2
    assert nonfinite_tracker.find_loading_line(anew(load), "NaN") == message.format(file=__file__, line=line)


def test_two_places_are_none_and_a_batch_that_cannot_be_had_is_none() -> None:
    def either(index: int) -> Tensor:
        return whitened(1) if index else torch.zeros(4) / 0

    assert nonfinite_tracker.find_loading_line(anew(either), "NaN") == ""
    assert nonfinite_tracker.find_loading_line(anew(whitened), "+Inf") == ""
    assert (
        nonfinite_tracker.find_loading_line(None, "NaN") == ""
        and nonfinite_tracker.find_loading_line(lambda: None, "NaN") == ""
    )
