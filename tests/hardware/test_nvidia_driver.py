"""The kernel's side of a driver, read from the files of a machine that is made for it."""

from __future__ import annotations

import os
from pathlib import Path

from ocrlab.hardware import nvidia_driver

VERSION = """NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (x)
GCC version:  gcc version 12.2.0
"""


def machine(root: Path) -> Path:
    """Make a machine with one card, its module and nodes."""
    card = root / "sys/bus/pci/devices/0000:01:00.0"
    audio = root / "sys/bus/pci/devices/0000:01:00.1"
    for place, kind in ((card, "0x030000"), (audio, "0x040300")):
        place.mkdir(parents=True)
        (place / "vendor").write_text("0x10de\n")
        (place / "class").write_text(f"{kind}\n")
    (root / "proc/driver/nvidia").mkdir(parents=True)
    (root / "proc/driver/nvidia/version").write_text(VERSION)
    (root / "proc/modules").write_text(
        "nvidia_uvm 1 0 - Live 0x0\nnvidia 1 1 nvidia_uvm, Live 0x0\next4 1 0 - Live 0\n"
    )
    (root / "dev").mkdir()
    return root


def test_a_machine_with_a_card(tmp_path: Path) -> None:
    kernel = nvidia_driver.kernel(machine(tmp_path))
    assert kernel["cards"] == ["0000:01:00.0"]  # the card's sound is none
    assert (kernel["module"], kernel["open"]) == ("580.65.06", True)
    assert kernel["modules"] == ["nvidia", "nvidia_uvm"]
    assert kernel["dxg"] is False


def test_an_empty_machine(tmp_path: Path) -> None:
    kernel = nvidia_driver.kernel(tmp_path)
    assert (kernel["cards"], kernel["module"], kernel["nodes"], kernel["modules"]) == ([], None, {}, [])


def test_nodes_are_character_devices_that_are_opened(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia-caps").mkdir()
    (tmp_path / "dev" / "nvidia0").symlink_to(os.devnull)
    (tmp_path / "dev" / "nvidiactl").symlink_to("nowhere")
    assert nvidia_driver.nodes(tmp_path) == {"nvidia0": "ok", "nvidiactl": "No such file or directory (2)"}


def test_the_path_of_a_mapped_library_by_its_name() -> None:
    assert nvidia_driver.mapped("libthat-nobody-has") is None
    path = nvidia_driver.mapped("libc.so") or nvidia_driver.mapped("libc-2") or nvidia_driver.mapped("ld-")
    assert path is not None and Path(path).exists()


def test_without_a_library_it_says_so(tmp_path: Path) -> None:
    first, at, *rest = nvidia_driver.driver(str(tmp_path))
    assert first["kernel"]["cards"] == []
    assert "libcuda" in at["at"]
    assert rest[-1]["cuda"]["loaded"] in (True, False)


def test_a_gpu_is_present_where_a_card_or_a_node_shows_it(tmp_path: Path) -> None:
    assert not nvidia_driver.present(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    assert nvidia_driver.present(tmp_path)
