"""What convolutions take inside themselves: by torch's own choice of the way, as was measured on a CPU without bf16."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ocrlab.trace import estimate_inside
from ocrlab.trace.estimate_inside import inside

MIB = 2**20


def measured(channels: tuple[int, int], kernel: int, *, last: bool, groups: int = 1, turned: bool = False) -> Any:
    """Return the arguments of a bf16 convolution of 4 maps of 64 px, and those of its backward pass."""
    form = torch.channels_last if last else torch.contiguous_format
    x = torch.empty(4, channels[0], 64, 64, dtype=torch.bfloat16, device="meta").to(memory_format=form)
    shape = channels if turned else (channels[1], channels[0] // groups)
    weight = torch.empty(*shape, kernel, kernel, dtype=torch.bfloat16, device="meta").to(memory_format=form)
    step = 2 if turned else 1
    rest = [[step, step], [0 if turned else kernel // 2] * 2, [1, 1], turned, [0, 0], groups]
    return (x, weight, None, *rest), (x, x, weight, None, *rest)


@pytest.mark.parametrize(
    ("channels", "kernel", "more", "last", "forward", "backward"),
    [  # MiB, measured on AVX2 with two threads as the high-water mark beyond arguments and results
        ((64, 64), 3, {}, True, 17.9, 18.0),
        ((64, 64), 3, {}, False, 17.9, 26.8),
        ((256, 64), 1, {}, True, 0.0, 3.8),
        ((256, 64), 1, {}, False, 0.0, 11.9),
        ((64, 64), 2, {"turned": True}, True, 7.8, 1.9),
        ((64, 64), 2, {"turned": True}, False, 11.8, 1.8),
        ((128, 128), 3, {"groups": 128}, True, 4.0, 8.1),
    ],
)
def test_unfolded_maps_are_counted_as_measured(
    channels: tuple[int, int], kernel: int, more: Any, last: bool, forward: float, backward: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(estimate_inside, "backend", lambda *_: "Slow2d")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    there, back = measured(channels, kernel, last=last, **more)
    assert inside("convolution", there) / MIB == pytest.approx(forward, rel=0.06, abs=0.3)
    assert inside("convolution_backward", back) / MIB == pytest.approx(backward, rel=0.06, abs=0.3)


def test_what_onednn_takes_as_it_is_costs_nothing_and_the_rest_a_copy() -> None:
    for last in (True, False):
        (x, weight, *rest), _ = measured((64, 64), 3, last=last)
        x, weight = (torch.empty_like(t, dtype=torch.float32, device="cpu") for t in (x, weight))
        assert estimate_inside.backend(x, weight, tuple(rest[1:])) == "Mkldnn"
        assert inside("convolution", (x, weight, *rest)) == (0 if last else 4 * (x.numel() + weight.numel()))


def test_bf16_is_unfolded_where_torch_says_so() -> None:
    (x, weight, _, *rest), _ = measured((64, 64), 3, last=True)
    maps: list[Tensor] = [torch.empty_like(t, device="cpu") for t in (x, weight)]
    known = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert estimate_inside.backend(maps[0], maps[1], tuple(rest)) == ("Mkldnn" if known else "Slow2d")


def test_a_way_that_torch_does_not_tell_is_none() -> None:
    assert estimate_inside.backend(torch.empty(1), torch.empty(1), ()) == ""
