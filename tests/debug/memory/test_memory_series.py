"""Series of memory from every source, and whether they grow."""

import random

import pytest

from ocrlab.debug.flight_record import ring_format, ring_writer
from ocrlab.debug.memory import memory_series
from ocrlab.debug.memory.memory_series import growth

MIB, GIB = 1 << 20, 1 << 30


def test_a_flight_record(tmp_path) -> None:
    (tmp_path / "flight").mkdir()
    writer, _ = ring_writer.create(tmp_path / "flight")
    for step in range(10):
        writer.begin(ring_format.Step(step, step, memory={"rss": step * MIB, "cuda0.allocated": step * GIB}))
    writer.close()
    gpu, host = memory_series.gather(tmp_path, {}, {})
    assert (gpu.what, gpu.where, gpu.values[-1]) == ("cuda0.allocated", "gpu", 9.0 * GIB)
    assert (host.what, host.where, host.unit) == ("rss", "host", "step")


def test_lines_of_a_log_but_not_highest_values() -> None:
    log = "\n".join(f"Epoch [1][{n}/99] lr: 0.1 memory: {8000 + n}, max mem: 9999 loss: 0.1" for n in range(8))
    assert memory_series.gather(None, {"log.txt": log}, {}) == []
    log = "\n".join(f"Epoch [1][{n}/99] lr: 0.1, memory: {8000 + n}, loss: 0.1" for n in range(8))
    [series] = memory_series.gather(None, {"log.txt": log}, {})
    assert (series.unit, series.source, series.values[1]) == ("line", "log.txt", 8001 * MIB)


def test_a_column_of_memory_under_its_heading() -> None:
    heads = (
        "      Epoch    GPU_mem   box_loss   cls_loss  Instances       Size",
        " Epoch gpu_mem box obj cls total targets img_size",  # "total" is not a peak here
    )
    for head in heads:
        rows = (f"{n}/99 {2 + n / 4:.2f}G 1.4 2.1 31 640: 100%|###| 9/9 [00:01<00:00]" for n in range(9))
        log = "\n".join(f"{head}\n {row}" for row in rows)
        [series] = memory_series.gather(None, {"log.txt": log}, {})
        assert (series.what, series.where, series.unit) == ("gpu_mem", "gpu", "line")
        assert series.values == [(2 + n / 4) * GIB for n in range(9)]
    other = "\n".join(f" Epoch loss Size\n {n}/99 {n}.5G 640" for n in range(9))
    assert memory_series.gather(None, {"log.txt": other}, {}) == []


def test_what_the_watcher_saw_of_a_start_is_early() -> None:
    seconds = [0.5 * n for n in range(40)]
    facts = {"memory": {"seconds": seconds, "tree": [n * MIB for n in range(40)], "shm": []}}
    [series] = memory_series.gather(None, {}, facts)
    assert series.early
    facts["memory"]["seconds"] = [2.0 * n for n in range(40)]
    [series] = memory_series.gather(None, {}, facts)
    assert not series.early
    assert series.at[0] == 10.0


def noise(seed: int, count: int) -> list[float]:
    chance = random.Random(seed)
    return [chance.gauss(0, 2 * MIB) for _ in range(count)]


@pytest.mark.parametrize("seed", range(2))
def test_a_leak_of_1_mib_a_step_lies_within_its_bounds(seed: int) -> None:
    steps = [float(step) for step in range(50)]
    values = [500 * MIB + step * MIB + more for step, more in zip(steps, noise(seed, 50), strict=True)]
    result = growth(steps, values, 1000 * MIB)
    assert result.grows
    assert result.low < MIB < result.high
    assert result.left == pytest.approx((1000 * MIB - values[-1]) / result.rate)


@pytest.mark.parametrize("seed", range(2))
def test_noise_and_a_start_that_levels_off_do_not_grow(seed: int) -> None:
    steps = [float(step) for step in range(60)]
    assert not growth(steps, [500 * MIB + more for more in noise(seed, 60)]).grows
    warm = [min(step, 15) * 40 * MIB + more for step, more in zip(steps, noise(seed, 60), strict=True)]
    assert not growth(steps, warm).grows


def test_few_points_and_none_show_no_growth() -> None:
    assert not growth([0, 1, 2], [0, 100 * MIB, 200 * MIB]).grows
    assert growth([], []).left is None
