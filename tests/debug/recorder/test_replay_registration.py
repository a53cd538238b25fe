"""The recorder runs without the replay, whose child registers a session with it."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from ocrlab.debug.flight_record import program_info
from ocrlab.debug.recorder import replay_registration


def test_a_recorded_program_imports_nothing_of_the_replay() -> None:
    code = "import sys, ocrlab.debug.recorder.loop_recorder\nprint([n for n in sys.modules if 'debug.replay' in n])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


def test_the_module_of_a_job_makes_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_registration, "_registered", [])
    module: Any = types.ModuleType("program_of_a_replay")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    prepared: list[Any] = []
    replay_registration.register(prepared.append, lambda job: None if job["nth"] else "session")  # type: ignore[arg-type, return-value]
    assert replay_registration.session() is None, "this process is not a replay"
    monkeypatch.setenv(program_info.REPLAY, str(tmp_path / "job.json"))
    for nth, wanted in ((0, "session"), (1, None)):
        (tmp_path / "job.json").write_text(json.dumps({"schema": 1, "session": module.__name__, "nth": nth}))
        assert replay_registration.session() == wanted
    replay_registration.prepare({"session": module.__name__})
    assert prepared == [{"session": module.__name__}]
    with pytest.raises(ImportError):
        replay_registration.prepare({"session": "ocrlab.debug.recorder.nothing"})
