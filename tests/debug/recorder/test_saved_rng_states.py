"""What a program draws, from the import of the recorder on, a replay of it draws again."""

import random
import subprocess
import sys

import numpy as np
import torch

from ocrlab.debug.flight_record import program_info
from ocrlab.debug.recorder import saved_rng_states
from ocrlab.debug.replay import trial
from ocrlab.debug.replay.replay_job import replay
from ocrlab.run_folder.atomic_files import write_json


def draw() -> tuple[float, float, float]:
    return random.random(), np.random.rand(), float(torch.rand(1))  # noqa: NPY002


def test_the_states_of_the_beginning_and_of_the_import_are_put_back(tmp_path, monkeypatch):
    folder = tmp_path / "flight"
    folder.mkdir()
    monkeypatch.setattr(saved_rng_states, "AT_IMPORT", {})
    saved_rng_states.record_import()
    first = draw()
    saved_rng_states.save_start(folder, 0, 3)
    second = draw()
    saved_rng_states.restore_start(folder, 0, 3)
    assert draw() == second
    saved_rng_states.restore_start(folder, 1, 3)  # of another rank nothing was noted
    assert draw() != second
    job = {"schema": 1, "run": str(tmp_path), "rank": 0, "start": 3, "session": trial.SESSION}
    write_json(tmp_path / "job.json", job)
    monkeypatch.setenv(program_info.REPLAY, str(tmp_path / "job.json"))
    saved_rng_states.record_import()
    assert draw() == first and draw() == second


def test_a_job_that_cannot_be_read_changes_nothing(tmp_path, monkeypatch) -> None:
    """The message appears when the program begins its loop."""
    for text in ("{", '{"schema": 1}', '{"schema": 1, "run": "/nowhere", "rank": 0, "start": 0}'):
        (tmp_path / "job.json").write_text(text)
        monkeypatch.setenv(program_info.REPLAY, str(tmp_path / "job.json"))
        before = random.getstate()
        saved_rng_states.record_import()
        assert random.getstate() == before


FOLDS = """
import torch
from torch import nn
from ocrlab.debug.recorder.loop_recorder import recording
x = torch.randn(24, 4)  # nobody has seeded it
for fold in range(3):
    net, seen = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1)), []
    with recording(f"fold{fold}", net) as rec:
        for number, batch in enumerate(rec.batches(list(x.split(4)))):
            loss = rec.loss(net(batch).square().mean() * (1 + fold))
            loss.backward()
            for parameter in net.parameters():
                parameter.data -= 0.01 * parameter.grad
            seen.append(loss.item())
            if (fold, number) == (1, 4):
                break
"""


def test_replay_runs_the_requested_training_of_several_in_a_program(tmp_path) -> None:
    program = tmp_path / "folds.py"
    program.write_text(FOLDS)
    done = subprocess.run([sys.executable, program.name], cwd=tmp_path, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert [program_info.read(tmp_path / f"fold{fold}")["nth"] for fold in (1, 2)] == [1, 2]
    outcome = replay(tmp_path / "fold1")
    assert outcome.record["equal"] is True, outcome.sentence
    assert sum(len(cell["steps"]) for cell in outcome.record["cells"]) % 5 == 0
    names = sorted(path.name for path in tmp_path.glob("fold1/flight/ring-*"))
    assert names == ["ring-0-0.bin"], "what comes before it is not recorded again"


def test_recordings_are_counted_by_the_cell_of_a_notebook(monkeypatch) -> None:
    monkeypatch.setattr(saved_rng_states, "recordings", type(saved_rng_states.recordings)())
    cells = iter([3, 3, 5, None, None])
    monkeypatch.setattr(saved_rng_states.notebook_cells, "current_cell", lambda: next(cells))
    assert [saved_rng_states.count_recording() for _ in range(5)] == [0, 1, 0, 0, 1]
