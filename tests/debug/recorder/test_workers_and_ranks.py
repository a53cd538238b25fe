"""Workers of every start method, the ranks of a distributed training, and a run folder that is recorded into twice."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ocrlab.debug.flight_record import program_info, ring_reader
from ocrlab.debug.replay import trial
from ocrlab.reports import list_runs
from tests.debug.recorder.recorded_runs import newest

STARTED = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from ocrlab.debug.recorder.loop_recorder import recording

class Noisy(Dataset):
    def __len__(self): return 22
    def __getitem__(self, index): return {"x": torch.randn(8), "name": f"page_{index}.png"}

if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(Noisy(), 4, shuffle=True, num_workers=1, multiprocessing_context=sys.argv[2])
    with recording(sys.argv[1], model, optimizer, snapshot_every=2) as rec:
        for batch in rec.batches(loader):
            rec.loss(model(batch["x"]).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
"""


def ran(command: list[str], **more: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), **more}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_of_every_start_method_are_recorded_and_replayed(tmp_path, method):
    program, run, out = tmp_path / "program.py", tmp_path / "run", tmp_path / "out"
    program.write_text(STARTED)
    command = [sys.executable, str(program), str(run), method]
    ran(command)
    flight = newest(run)
    assert sorted(name for step in flight.steps for name in step.samples) == sorted(f"page_{i}.png" for i in range(22))
    assert [bool(worker.sample) for worker in flight.workers] == [True]
    out.mkdir()
    job = {"schema": 1, "run": str(run), "rank": 0, "snapshot": str(flight.snapshots[-1].path), "out": str(out)}
    job |= {"session": trial.SESSION}
    (out / "job.json").write_text(json.dumps({**job, "first_step": 0, "last_step": flight.now.number}))
    ran(command, **{program_info.REPLAY: str(out / "job.json")})
    result = json.loads((out / "result.json").read_text())
    assert result["finished"]
    assert len(result["steps"]) >= 2
    assert all(step["equal"] for step in result["steps"])


RANK = """
import sys, torch
from torch import nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from ocrlab.debug.recorder.loop_recorder import recording
rank = int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=2)
torch.manual_seed(0)
data = TensorDataset(torch.randn(24, 4))
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(data, 3, sampler=DistributedSampler(data, shuffle=False))
with recording(sys.argv[1], model, optimizer, snapshot_every=2) as rec:
    for (x,) in rec.batches(loader):
        rec.loss(model(x).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_each_rank_has_a_ring_and_a_snapshot_of_its_own(tmp_path):
    run = tmp_path / "run"
    command = [sys.executable, "-c", RANK, str(run)]
    ranks = [subprocess.Popen([*command, str(rank), str(tmp_path / "meet")]) for rank in range(2)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    rings = [ring_reader.read_ring(path) for path in ring_reader.find_rings(run)]
    assert [(ring.rank, len(ring.steps), len(ring.snapshots)) for ring in rings] == [(0, 4, 2), (1, 4, 2)]
    for ring in rings:
        assert ring.steps[0].samples == [str(2 * i + ring.rank) for i in range(3)]
    assert {path.name for path in (run / "flight").glob("program*.json")} == {"program.json", "program-1.json"}


TWICE = """
import sys, torch, ocrlab
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]))
x = torch.randn(64, 4)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
with ocrlab.record("run", model, optimizer) as rec:
    for _ in rec.epochs(6):
        for inputs, wanted in rec.batches(torch.utils.data.DataLoader(data, batch_size=8)):
            optimizer.zero_grad()
            loss = ((model(inputs) - wanted) ** 2).mean()
            loss.backward()
            optimizer.step()
            rec.loss(loss)
"""


def python(tmp_path: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=100, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_start_is_kept_and_does_not_speak_for_the_second(tmp_path: Path) -> None:
    run = tmp_path / "run"
    python(tmp_path, "-c", TWICE, "1e30")
    [listed] = list_runs(run)
    assert listed.status == "diverged" and listed.why.startswith("the loss is nan")
    answer = {"schema": 1, "answer": "first fault at step 1: NaN", "fault": {"kind": "nonfinite"}}
    (run / "incident").mkdir()
    (run / "incident/replay.json").write_text(json.dumps(answer))
    first = python(tmp_path, "-m", "ocrlab", "diagnose", "run")
    assert "first fault at step 1: NaN" in first and "the loss is nan" in first

    python(tmp_path, "-c", TWICE, "0.01")
    second = python(tmp_path, "-m", "ocrlab", "diagnose", "run")
    assert "NaN" not in second and "the loss is nan" not in second
    assert list_runs(run)[0].status == "recorded"
    aside = run / "flight/start-0"
    assert "the loss is nan" in (aside / "learned-0.json").read_text()
    assert json.loads((aside / "incident-replay.json").read_text()) == answer


LIVE = """
import sys, torch, ocrlab
net = torch.nn.Linear(2, 1)
with ocrlab.record("run", net) as rec:
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_two_live_recordings_in_one_folder_warn(tmp_path: Path) -> None:
    """The second says so, whether the first is of another process or of its own; one that has ended does not count."""
    command = [sys.executable, "-c", LIVE]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as first:
        assert first.stdout.readline() == "ready\n"
        second = subprocess.run(command, cwd=tmp_path, input="", capture_output=True, text=True, check=True)
        assert f"process {first.pid} records into run too" in second.stderr
        _, errors = first.communicate("\n")
    assert first.returncode == 0 and "too" not in errors
    twice = LIVE + LIVE.replace("ready", "again").replace("as rec:", "as rec:\n    nested = ocrlab.record('run', net)")
    done = subprocess.run([*command[:2], twice], cwd=tmp_path, input="", capture_output=True, text=True, check=True)
    assert done.stderr.count("records into run too") == 1, "the nested one, and none of those that have ended"
