"""WSL2 is recognised by its files, on simulated machines."""

from __future__ import annotations

from pathlib import Path

from ocrlab.hardware import wsl


def machine(root: Path, release: str) -> Path:
    """Make the files of a Linux with such a kernel."""
    (root / "proc/sys/kernel").mkdir(parents=True)
    (root / "proc/sys/kernel/osrelease").write_text(f"{release}\n")
    (root / "proc/meminfo").write_text("MemTotal:  16384000 kB\nSwapTotal:  4096000 kB\n")
    return root


def test_plain_linux_and_wsl1(tmp_path: Path) -> None:
    assert wsl.facts(str(machine(tmp_path / "a", "6.8.0-45-generic"))) == {"wsl": 0}
    assert wsl.facts(str(machine(tmp_path / "b", "4.4.0-19041-Microsoft")))["wsl"] == 1
    assert wsl.facts(str(tmp_path / "empty")) == {"wsl": 0}


def test_wsl2(tmp_path: Path) -> None:
    root = machine(tmp_path, "5.15.153.1-microsoft-standard-WSL2")
    (root / "dev").mkdir()
    (root / "dev/dxg").touch()
    (root / "usr/lib/wsl/lib").mkdir(parents=True)
    (root / "usr/lib/wsl/lib/libcuda.so.1").touch()
    answer = wsl.facts(str(root))
    assert (answer["wsl"], answer["dxg"]) == (2, True)
    assert answer["release"] == "5.15.153.1-microsoft-standard-WSL2"
    assert (answer["memory"], answer["swap"]) == (16384000 * 1024, 4096000 * 1024)
    assert [Path(place).name for place in answer["libcuda"]] == ["libcuda.so.1"]
    assert answer["foreign"] == []


def test_a_linux_driver_beside_windowss(tmp_path: Path) -> None:
    root = machine(tmp_path, "5.15.153.1-microsoft-standard-WSL2")
    folder = root / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    (folder / "libcuda.so.550.54").touch()
    assert wsl.facts(str(root))["foreign"] == [str(folder / "libcuda.so.550.54")]
