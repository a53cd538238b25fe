"""Mapped libraries: of this process, and of made-up ones that have two of a kind."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from ocrlab.hardware import mapped_libraries

SITE = "/v/lib/python3.11/site-packages"


def mapped(root: Path, *paths: str) -> list[mapped_libraries.Library]:
    """Return what `libraries` reads of a process with these files, each in two parts as the loader maps them."""
    place = root / "proc/7"
    place.mkdir(parents=True)
    line = "7f00-7f10 r-xp 00000000 fd:00 1234                       {}\n"
    text = "7ffc-7ffd rw-p 00000000 00:00 0                          [stack]\n7f20-7f30 rw-p 00000000 00:00 0 \n"
    (place / "maps").write_text(text + "".join(2 * line.format(path) for path in paths))
    libraries = mapped_libraries.libraries(7, root).value
    assert isinstance(libraries, list)
    return libraries


def test_names_and_versions(tmp_path: Path) -> None:
    libraries = mapped(
        tmp_path,
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
        f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9.1.0",
        f"{SITE}/numpy.libs/libgomp-a34b3233.so.1.0.0",
        f"{SITE}/torch/lib/libtorch_cpu.so (deleted)",
        f"{SITE}/name with spaces/liba.so.1",
        "/usr/bin/python3.11",
        "/dev/nvidiactl",
    )
    assert [(library.soname, library.version) for library in libraries] == [
        ("libc.so", "6"),
        ("liba.so", "1"),
        ("libgomp.so", "1.0.0"),
        ("libcudnn.so", "9.1.0"),
        ("libtorch_cpu.so", ""),
    ]
    assert libraries[1].path.endswith("name with spaces/liba.so.1")


def test_two_of_a_kind(tmp_path: Path) -> None:
    libraries = mapped(
        tmp_path,
        f"{SITE}/nvidia/cublas/lib/libcublas.so.12",
        f"{SITE}/nvidia/cublas/lib/libcublasLt.so.12",
        "/usr/local/cuda-11.8/lib64/libcublas.so.11",
        f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9",
        "/usr/lib/x86_64-linux-gnu/libcudnn_ops_infer.so.8",
        f"{SITE}/torch/lib/libgomp.so.1",
        f"{SITE}/torch/lib/libiomp5.so",
        f"{SITE}/nvidia/nccl/lib/libnccl.so.2",
    )
    twice = mapped_libraries.mixed(libraries)
    assert sorted(twice) == ["OpenMP", "cuBLAS", "cuDNN"]
    assert {library.version for library in twice["cuBLAS"]} == {"11", "12"}
    assert [library.soname for library in twice["OpenMP"]] == ["libgomp.so", "libiomp5.so"]


def test_a_single_copy_of_each_is_fine(tmp_path: Path) -> None:
    libraries = mapped(tmp_path, f"{SITE}/a/libcudnn.so.9", f"{SITE}/a/libcudnn_ops.so.9", f"{SITE}/a/libgomp.so.1")
    assert mapped_libraries.mixed(libraries) == {}


def test_a_real_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "import ctypes, time; time.sleep(600)"]) as child:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            libraries = mapped_libraries.libraries(child.pid).value or []
            if any("ctypes" in library.path for library in libraries):
                break
            time.sleep(0.02)
        child.kill()
    assert any(library.soname == "libc.so" and library.version == "6" for library in libraries)
    assert len({library.path for library in libraries}) == len(libraries)


def test_a_process_that_is_gone_is_a_reason(tmp_path: Path) -> None:
    assert "No such file" in str(mapped_libraries.libraries(7, tmp_path).missing)
