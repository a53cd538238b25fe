from __future__ import annotations

import random

import pytest

from ocrlab.debug.memory.growth import growth

MIB = 1 << 20


def noise(seed: int, count: int) -> list[float]:
    chance = random.Random(seed)
    return [chance.gauss(0, 2 * MIB) for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_a_leak_of_1_mib_a_step_lies_within_its_bounds(seed: int) -> None:
    steps = [float(step) for step in range(50)]
    values = [500 * MIB + step * MIB + more for step, more in zip(steps, noise(seed, 50), strict=True)]
    result = growth(steps, values, 1000 * MIB)
    assert result.grows
    assert result.low < MIB < result.high
    assert result.left == pytest.approx((1000 * MIB - values[-1]) / result.rate)


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_a_start_that_levels_off_do_not_grow(seed: int) -> None:
    steps = [float(step) for step in range(60)]
    assert not growth(steps, [500 * MIB + more for more in noise(seed, 60)]).grows
    warm = [min(step, 15) * 40 * MIB + more for step, more in zip(steps, noise(seed, 60), strict=True)]
    assert not growth(steps, warm).grows


def test_few_points_and_none_show_no_growth() -> None:
    assert not growth([0, 1, 2], [0, 100 * MIB, 200 * MIB]).grows
    assert growth([], []).left is None
