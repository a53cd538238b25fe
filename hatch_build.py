"""Builds the recorder's part in C where there is a compiler; without one it is all Python, a step 0.1 ms slower."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = ("quick.c", "marks.c", "stage.c", "walk.c", "notes.c", "quick_module.c")
OLDEST = (3, 11)  # the recorder needs torch, which the half that runs on 3.10 does not have


class Build(BuildHookInterface[Any]):
    """Compiles `ocrlab/debug/recorder/quick`: beside its sources for an editable install, elsewhere for a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = Path(self.root, "ocrlab", "debug", "recorder")
        name = f"quick{sysconfig.get_config_var('EXT_SUFFIX')}"
        self.place = tempfile.TemporaryDirectory(prefix="ocrlab-build-")
        made = folder / name if version == "editable" else Path(self.place.name, name)
        why = "this Python is too old" if sys.version_info < OLDEST else compiled(folder, made)
        if why:
            self.app.display_warning(f"ocrlab: its recorder stays in Python: {why}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version != "editable":
            build_data["force_include"][str(made)] = f"ocrlab/debug/recorder/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self.place.cleanup()


def compiled(folder: Path, made: Path) -> str:
    """Compile the extension for this Python, in one step for whoever starts meanwhile; returns why it could not be."""
    part = made.with_name(f".{made.name}.{os.getpid()}")
    words = ["-O2", "-fPIC", "-shared", f"-I{sysconfig.get_path('include')}", f"-DFORM={form(folder)}"]
    words += [*(str(folder / name) for name in SOURCES), "-o", str(part)]
    # What this Python was built with may be on another machine only.
    named = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    found = [command for command in (shlex.split(named), ["cc"], ["gcc"], ["clang"]) if shutil.which(command[0])]
    if not found:
        return f"there is no C compiler ({named} is not here)"
    try:
        done = subprocess.run([*found[0], *words], capture_output=True, text=True, timeout=300, check=False)
        if done.returncode == 0:
            os.replace(part, made)
            return ""
        return next((line for line in done.stderr.splitlines() if "error" in line), f"{found[0][0]} failed")
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    finally:
        part.unlink(missing_ok=True)


def form(folder: Path) -> int:
    """Return a number that is another one for other sources; generators.py names the one that it fits."""
    number = 0
    for name in ("quick.h", *SOURCES):
        number = zlib.crc32((folder / name).read_bytes(), number)
    return number


if __name__ == "__main__":
    print(form(Path(__file__).parent / "ocrlab" / "debug" / "recorder"))
