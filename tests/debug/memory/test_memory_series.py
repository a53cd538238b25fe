from __future__ import annotations

from pathlib import Path

from ocrlab.debug.flight_record import ring_format, ring_writer
from ocrlab.debug.memory import memory_series

MIB, GIB = 1 << 20, 1 << 30


def test_a_flight_record(tmp_path: Path) -> None:
    (tmp_path / "flight").mkdir()
    writer, _ = ring_writer.create(tmp_path / "flight")
    for step in range(10):
        writer.begin(ring_format.Step(step, step, memory={"rss": step * MIB, "cuda0.allocated": step * GIB}))
    writer.close()
    gpu, host = memory_series.gather(tmp_path, {}, {})
    assert (gpu.what, gpu.where, gpu.values[-1]) == ("cuda0.allocated", "gpu", 9.0 * GIB)
    assert (host.what, host.where, host.unit) == ("rss", "host", "step")


def test_a_table_of_metrics_with_and_without_units(tmp_path: Path) -> None:
    rows = ["step,loss,gpu_mem_gb,host_rss_mb,peak_memory"] + [f"{n},1.0,{n},{100 + n},{n}" for n in range(8)]
    (tmp_path / "metrics.csv").write_text("\n".join(rows))
    by_name = {series.what: series for series in memory_series.gather(tmp_path, {}, {})}
    assert set(by_name) == {"gpu_mem_gb", "host_rss_mb"}
    assert by_name["gpu_mem_gb"].values[-1] == 7 * GIB
    assert (by_name["host_rss_mb"].where, by_name["host_rss_mb"].values[0]) == ("host", 100 * MIB)


def test_lines_of_a_log_but_not_highest_values() -> None:
    log = "\n".join(f"Epoch [1][{n}/99] lr: 0.1 memory: {8000 + n}, max mem: 9999 loss: 0.1" for n in range(8))
    assert memory_series.gather(None, {"log.txt": log}, {}) == []
    log = "\n".join(f"Epoch [1][{n}/99] lr: 0.1, memory: {8000 + n}, loss: 0.1" for n in range(8))
    [series] = memory_series.gather(None, {"log.txt": log}, {})
    assert (series.unit, series.source, series.values[1]) == ("line", "log.txt", 8001 * MIB)
    [series] = memory_series.gather(None, {"log.txt": "\n".join(f"{n} GPU mem 1.{n}G" for n in range(8))}, {})
    assert series.values[1] == 1.1 * GIB


def test_a_column_of_memory_under_its_heading() -> None:
    heads = (
        "      Epoch    GPU_mem   box_loss   cls_loss  Instances       Size",
        " Epoch gpu_mem box obj cls total targets img_size",  # "total" is no highest value here
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
