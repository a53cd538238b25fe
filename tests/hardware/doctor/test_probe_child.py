"""The child's side by itself: answers go through a pipe of their own, whatever else is printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ocrlab.hardware.doctor import probe_child, probe_runner


def boots(file: Path, function: str, **arguments: object) -> tuple[list[dict[str, object]], str]:
    """Boot one function and return its answers and what was printed."""
    reader, writer = os.pipe()
    words = [sys.executable, str(probe_runner.BOOT), str(writer), str(file), function, json.dumps(arguments), ""]
    done = subprocess.run(words, pass_fds=(writer,), capture_output=True, text=True, timeout=60, check=False)
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        return [json.loads(line) for line in pipe], done.stdout


def test_answers_are_apart_from_what_is_printed(tmp_path: Path) -> None:
    probe = tmp_path / "probe.py"
    probe.write_text(
        "def talk(word):\n    print('noise')\n    yield {'said': word}\n    print('{}')\n    yield {'n': 2}\n"
    )
    answers, printed = boots(probe, "talk", word="ä")
    assert answers == [{"said": "ä"}, {"n": 2}, {"done": True}]
    assert printed == "noise\n{}\n"


def test_a_long_answer_comes_whole() -> None:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        probe_child.send(writer, {"long": "x" * 500_000})
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        assert len(json.loads(pipe.read())["long"]) == 500_000
    os.waitpid(pid, 0)


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13"])
def test_other_pythons_understand_it_and_the_probes(version: str) -> None:
    import ast

    probes = Path(probe_runner.ROOT, "ocrlab", "hardware")
    for file in (
        probe_runner.BOOT,
        *(probes / f"{name}.py" for name in ("import_probe", "installed_packages", "smoke_test", "dataloader_probe")),
    ):
        ast.parse(file.read_text(encoding="utf-8"), feature_version=tuple(map(int, version.split("."))))
