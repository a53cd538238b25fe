"""Libraries of a driver that are compiled for a test."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def compile_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Return a function that compiles C into a library of some name, in a new folder; skips without a C compiler."""

    def build(name: str, source: str) -> Path:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler")
        folder = tmp_path_factory.mktemp("library")
        command = [compiler, "-shared", "-fPIC", "-w", "-x", "c", "-", f"-Wl,-soname,{name}", "-o", str(folder / name)]
        subprocess.run(command, input=source, text=True, check=True, timeout=60)
        return folder

    return build
