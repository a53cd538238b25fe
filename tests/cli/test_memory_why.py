from __future__ import annotations

import json
from pathlib import Path

from ocrlab.cli import memory_why
from ocrlab.cli.parser import Answer, Parser


def asked(*words: str) -> Answer:
    parser = Parser("ocrlab memory why", "why", memory_why.EXAMPLES)
    memory_why.arguments(parser)
    return memory_why.run(parser.parse_args(list(words)))


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


def test_no_memory_failure_ends_with_status_1(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("KeyError: 'x'\n")
    assert asked(str(log)).status == 1
