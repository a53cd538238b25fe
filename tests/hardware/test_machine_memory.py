from __future__ import annotations

import os
from pathlib import Path

from ocrlab.hardware import machine_memory


def test_the_machine(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  2000 kB\nMemFree: 10 kB\nMemAvailable:  500 kB\n")
    assert machine_memory.machine(tmp_path).value == {"total": 2048000, "available": 512000, "used": 1536000}
    assert machine_memory.machine(tmp_path / "nowhere").missing


def test_the_largest_come_first() -> None:
    processes = machine_memory.largest(5)
    assert [process["rss"] for process in processes] == sorted((process["rss"] for process in processes), reverse=True)
    everyone = machine_memory.largest(100_000)
    assert os.getpid() in {process["pid"] for process in everyone}
