"""Many commands one after the other in one process, which imports torch once at most."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parents[1]
EACH = """
import json, os, sys
from ocrlab.cli import main
for number, command in enumerate(json.load(sys.stdin)):
    with open(f"{number}.stdout", "wb") as out, open(f"{number}.stderr", "wb") as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        status = main(command)
        sys.stdout.flush()
        sys.stderr.flush()
    with open(f"{number}.status", "w") as file:
        file.write(str(status))
"""


def run_each(commands, cwd, notes, *, seconds, memory):
    """Run commands in a folder within seconds and bytes of memory for all; return status, stdout and stderr of each."""
    lines, notes = list(commands), notes.resolve()
    notes.mkdir()
    code = EACH.replace('open(f"', f'open(f"{notes}/')

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))

    try:
        subprocess.run(
            [sys.executable, "-c", code], cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT)},
            input=json.dumps([line.split() for line in lines]).encode(), timeout=seconds,
            preexec_fn=bound, check=True,
        )  # fmt: skip
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        last = lines[len([*notes.glob("*.status")])]
        raise AssertionError(f"ocrlab {last}: {error}") from error
    read = {
        name: [(notes / f"{n}.{name}").read_text() for n in range(len(lines))]
        for name in ("status", "stdout", "stderr")
    }
    rows = zip(lines, read["status"], read["stdout"], read["stderr"], strict=True)
    return {line: SimpleNamespace(returncode=int(s), stdout=out, stderr=err) for line, s, out, err in rows}
