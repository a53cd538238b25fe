from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ocrlab.cli import memory_why
from ocrlab.cli.answer import Answer, Parser


def asked(*words: str, program: tuple[str, ...] = ()) -> Answer:
    parser = Parser("ocrlab memory why", "why", memory_why.EXAMPLES)
    memory_why.arguments(parser)
    args = parser.parse_args(list(words))
    args.program = list(program)
    return memory_why.run(args)


def test_a_log_is_answered_with_seven_rows_and_a_sentence(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("DefaultCPUAllocator: can't allocate memory: you tried to allocate 21474836480 bytes.\n")
    done = asked(str(log))
    lines = done.text.splitlines()
    assert [line[0] for line in lines[:7]] == list("1234567")
    assert "20.00 GiB" in lines[0]
    assert lines[-1].startswith("It ran out of memory")
    assert done.status == 0
    assert done.record["kind"] == "refused by the host"
    assert json.loads(json.dumps(done.record))["schema"] == 1


def test_no_memory_failure_ends_with_one(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("KeyError: 'x'\n")
    assert asked(str(log)).status == 1


def test_try_says_what_it_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text("MemoryError\n")
    code = "import sys; sys.exit('MemoryError' if int(sys.argv[2]) > 2 else 0)"
    done = asked(str(log), "--try", "--timeout", "30", program=(sys.executable, "-c", code, "--batch-size", "8"))
    assert done.record["tried"]["change"] == "--batch-size 2"
    assert done.status == 0
    assert "with --batch-size 4" in capsys.readouterr().err
