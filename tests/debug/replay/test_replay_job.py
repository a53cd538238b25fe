"""`ocrlab replay` from the outside: programs with planted faults are recorded, die, and are replayed."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ocrlab.debug.flight_record import program_info, ring_reader, ring_writer
from ocrlab.debug.flight_record.ring_format import Step
from ocrlab.debug.recorder import snapshots
from ocrlab.debug.replay import recorded_step, replay_summary
from ocrlab.debug.replay import replay_job as replaying
from ocrlab.debug.replay.replay_job import Replayed, replay
from ocrlab.debug.replay.trial import TrialResult
from ocrlab.debug.replay.variants import Variant
from ocrlab.errors import ConfigError, DataError, RunError
from ocrlab.hardware.processes import process_tree

ROOT = Path(__file__).parents[3]
LOOP = """
import os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from ocrlab.debug.recorder.loop_recorder import recording

what, out = sys.argv[1:]
torch.manual_seed(0)

class Pages(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        image, truth = torch.randn(3, 8, 8, generator=g), torch.randint(0, 5, (8, 8), generator=g)
        if i == 7 or what == "first data":
            if what.endswith("data"):
                raise OSError("a torn page")
            image[1, 4, 5] = float("nan") if what.endswith("nan") else 100.0
            truth[2, 3] = 11 if what == "target" else 1
        return {"image": image, "truth": truth, "name": f"page_{i}.png"}

class LineFilter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, g):
        boom()

def boom():
    if os.environ.get("OCRLAB_REPLAY"):
        assert os.environ["WANDB_MODE"] == "disabled" and sys.stdin.read() == ""
    if what.endswith("segv"):
        os.kill(os.getpid(), 11)
    while what.endswith("hang"):
        time.sleep(0.01)
    raise RuntimeError("planted")

def plant(module, inputs, output):
    if float(inputs[0].abs().max()) > 50 and what.split()[-1] in ("segv", "hang", "raise"):
        return LineFilter.apply(output) if what.startswith("backward") else boom()

net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.1))
net.add_module("head", nn.Conv2d(4, 5, 1))
net[0].register_forward_hook(plant)
optimizer = torch.optim.AdamW(net.parameters())
with recording(out, net, optimizer) as rec:
    g = torch.Generator().manual_seed(1)
    for batch in rec.batches(DataLoader(Pages(), batch_size=3, shuffle=True, generator=g, num_workers="raise" in what)):
        loss = nn.functional.cross_entropy(net(batch["image"]), batch["truth"])
        if what != "late nan":
            rec.loss(loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert torch.isfinite(loss) or what == "late nan", "the loss is not finite"
    assert torch.isfinite(loss), "the last loss is not finite"
"""


KEEPING = """
import sys, torch
from torch import nn
from ocrlab.debug.recorder.loop_recorder import recording
what, out = sys.argv[1:]
torch.manual_seed(0)
net, step, Own = nn.Linear(4, 3), 0, type("Own", (list,), {})
calls, means = Own([0]), Own()  # such lists are in no snapshot
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
with recording(out, net, optimizer, snapshot_every=8) as rec:
    for x in rec.batches([torch.randn(2, 4) for _ in range(40)]):
        means.append(x.mean())
        calls[0] += 1
        target = torch.tensor([1, 7 if (step == 29 if what == "counted" else calls[0] == 30) else 2])
        optimizer.zero_grad()
        rec.loss(nn.functional.cross_entropy(net(x), target) * means[step if what == "kept" else -1]).backward()
        optimizer.step()
        step += 1
"""


def recorded(tmp_path: Path, what: str, seconds: float = 120, text: str = LOOP) -> Path:
    """Run the program with a fault until it dies of it, or is killed because it hangs; return its run folder."""
    program, run = tmp_path / "train.py", tmp_path / "run"
    program.write_text(text)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(program), what, str(run)]
    child = subprocess.Popen(command, env=environment, stdout=-3, stderr=-3, cwd=tmp_path)
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    return run


def answered(tmp_path: Path, what: str, seconds: float = 120) -> tuple[Replayed, dict[str, Any]]:
    answer = replay(recorded(tmp_path, what, seconds))
    assert answer.path is not None
    record = json.loads(answer.path.read_text())
    return answer, record["fault"]


def test_nan_in_a_page_is_placed(tmp_path: Path) -> None:
    answer, fault = answered(tmp_path, "nan")
    assert (fault["path"], fault["op"], fault["phase"]) == ("0", "aten::convolution", "forward")
    assert (fault["names"], fault["pixel"], fault["value"]) == (["page_7.png"], [4, 5], "NaN")
    assert answer.path == tmp_path / "run" / "incident" / "replay.json"
    assert "sample `page_7.png`" in answer.sentence and "`0` (Conv2d 3->4)" in answer.sentence
    assert not list((tmp_path / "run").glob("flight/ring-0-1.bin")), "a replay makes no record of its own"


@pytest.mark.slow
def test_a_target_out_of_range_is_placed_and_older_answers_stay(tmp_path: Path) -> None:
    answer, fault = answered(tmp_path, "target")
    assert (fault["kind"], fault["op"], fault["value"]) == ("target", "aten::nll_loss2d_forward", "11")
    assert (fault["names"], fault["pixel"]) == (["page_7.png"], [2, 3])
    again = replay(tmp_path / "run")
    assert again.sentence == answer.sentence
    assert again.path == tmp_path / "run" / "incident" / "replay-2.json"


@pytest.mark.slow
@pytest.mark.parametrize("what", ["segv", "backward segv", "raise", "backward raise", "backward hang"])
def test_what_dies_because_of_a_page_is_placed_with_it(tmp_path: Path, what: str) -> None:
    answer, fault = answered(tmp_path, what, 25 if "hang" in what else 120)
    assert fault["phase"] == ("backward" if "backward" in what else "forward")
    assert (fault["path"], fault["module"]) == ("0", "Conv2d 3->4")
    assert "sample `page_7.png`" in answer.sentence and fault["names"] == ["page_7.png"]
    assert fault.get("op") == ("LineFilter" if "backward" in what else None) and "boom" in fault["surfaced"]
    texts = {"segv": "killed by SIGSEGV", "raise": "RuntimeError: planted", "hang": "it never returned"}
    assert texts[what.split()[-1]] in answer.sentence


@pytest.mark.slow
def test_a_replay_that_is_interrupted_leaves_nobody_behind(tmp_path: Path) -> None:
    run = recorded(tmp_path, "hang", 20)
    code = f"from pathlib import Path; from ocrlab.debug.replay.replay_job import replay; replay(Path({str(run)!r}))"
    child = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=-3, start_new_session=True)
    job = run / "flight"
    end = time.monotonic() + 60
    while not list(job.glob("replay-*/0-traced/trail.bin")) and time.monotonic() < end:
        time.sleep(0.1)
    pids = [process.pid for process in process_tree.descendants(child.pid)]
    assert len(pids) > 2
    child.send_signal(signal.SIGINT)
    assert child.wait(60) != 0
    end = time.monotonic() + 30
    while any(process_tree.read_process(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.1)
    assert not [pid for pid in pids if process_tree.read_process(pid)]


@pytest.mark.slow
def test_what_never_returns_is_placed_with_its_page(tmp_path: Path) -> None:
    answer, fault = answered(tmp_path, "hang", 20)
    assert (fault["kind"], fault["path"]) == ("hang", "0")
    assert "boom" in fault["surfaced"] and "sample `page_7.png`" in answer.sentence


@pytest.mark.slow
def test_a_page_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    _, fault = answered(tmp_path, "data")
    assert (fault["kind"], fault["names"]) == ("data", ["7"])
    assert "OSError: a torn page" in fault["exception"]


@pytest.mark.slow
def test_a_run_that_cannot_load_its_first_batch_is_replayed(tmp_path: Path) -> None:
    answer, fault = answered(tmp_path, "first data")
    assert (fault["kind"], fault["step"]) == ("data", 0) and fault["line"].endswith(" __getitem__")
    assert "OSError: a torn page" in answer.sentence and fault["names"]


@pytest.mark.slow
def test_a_program_that_notices_behind_its_loop_is_reported_for_the_step_before(tmp_path: Path) -> None:
    answer, fault = answered(tmp_path, "late nan")
    assert [row[0] for row in answer.rows[1:]] == ["traced"], "the steps before are looked at in the same start"
    assert (fault["path"], fault["op"], fault["names"]) == ("0", "aten::convolution", ["page_7.png"])


@pytest.mark.slow
def test_a_run_that_did_well_is_equal_bit_for_bit(tmp_path: Path) -> None:
    answer = replay(recorded(tmp_path, "nothing"), 2)
    assert answer.record["equal"] is True and not answer.reproduced
    assert not answer.record["warnings"], "it begins at the snapshot"
    assert "loss equal bit for bit" in answer.sentence


def make_run(run: Path, *, steps: int = 3, **program: Any) -> Path:
    """Make a run folder with a record as a program leaves it."""
    (run / "flight").mkdir(parents=True)
    writer, _ = ring_writer.create(run / "flight", slots=8)
    for number in range(steps):
        writer.begin(Step(number, number, samples=[f"{number}.png"], time=float(number)))
        writer.loss(1.0)
    writer.close()
    (run / "flight" / "program.json").write_text(json.dumps({"schema": 1, "argv": [sys.executable, "x.py"], **program}))
    return run


def test_the_step_that_in_progress_is_chosen(tmp_path: Path) -> None:
    answer = recorded_step.find(make_run(tmp_path / "run"))
    assert (answer.number, answer.samples, answer.on_gpu, answer.seconds) == (2, ["2.png"], False, 1.0)
    assert recorded_step.find(tmp_path / "run", 1).number == 1


def test_the_first_loss_that_is_not_finite_wins(tmp_path: Path) -> None:
    writer, _ = ring_writer.create(make_run(tmp_path / "run") / "flight", slots=8)
    for number, loss in enumerate((1.0, float("nan"), float("nan"))):
        writer.begin(Step(number, number))
        writer.loss(loss)
    writer.close()
    assert recorded_step.find(tmp_path / "run").number == 1


@pytest.mark.parametrize(("what", "number", "error", "words"), [
    ("nowhere", None, RunError, "There is no folder .*nowhere"),
    ("empty", None, RunError, "has no flight record"),
    ("run", 9, ConfigError, "Step 9 is not in the record"),
    ("unbegun", None, RunError, "was ended before its first step"),
])  # fmt: skip
def test_what_cannot_be_replayed_is_explained_in_a_sentence(tmp_path, what, number, error, words):
    make_run(tmp_path / "run")
    make_run(tmp_path / "unbegun", steps=0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=words):
        replay(tmp_path / what, number)


@pytest.mark.parametrize(("program", "words"), [
    ({"interactive": True}, "a notebook"),
    ({"argv": ["python"]}, "the command"),
    ({"executable": "/no/python"}, "gone"),
])  # fmt: skip
def test_a_program_that_cannot_be_started_again_says_why(tmp_path: Path, program: Any, words: str) -> None:
    answer = recorded_step.find(make_run(tmp_path / "run", **program))
    with pytest.raises(RunError, match=words):
        recorded_step.command(answer, tmp_path / "job.json")


def test_ocrlab_train_is_started_by_its_job_and_a_script_as_it_was(tmp_path: Path) -> None:
    ours = make_run(tmp_path / "a", kind="ocrlab train", argv=["python", "-m", "ocrlab", "train", "data=x"])
    expected = ["-m", "ocrlab.training.jobs.replay_step", "job"]
    assert recorded_step.command(recorded_step.find(ours), Path("job"))[1:] == expected
    child = ["python", "-c", "from ocrlab.notebook import child_main as child; child.start()", "/tmp/ocrlab-child-gone"]
    notebook = make_run(tmp_path / "c", kind="ocrlab train", argv=child)
    assert recorded_step.command(recorded_step.find(notebook), Path("job"))[1:] == [
        "-m", "ocrlab.training.jobs.replay_step", "job",
    ]  # fmt: skip
    (tmp_path / "mine.py").write_text("")
    script = make_run(
        tmp_path / "b", cwd=str(tmp_path), kind="ocrlab train", executable=sys.executable, argv=["python", "mine.py"]
    )
    assert recorded_step.command(recorded_step.find(script), Path("job"))[-2:] == [sys.executable, "mine.py"]
    carried = recorded_step.environment(recorded_step.find(script), tmp_path / "job")
    assert carried[program_info.REPLAY] == str(tmp_path / "job")


@pytest.mark.parametrize("older", [True, False], ids=["torch's older form", "zip"])
def test_a_torn_snapshot_is_passed_over_and_a_damaged_ring_is_reported(tmp_path, monkeypatch, older):
    run = make_run(tmp_path / "run")
    whole, torn = run / "flight" / "snapshot-0-a.pt", run / "flight" / "snapshot-0-b.pt"
    snapshots.write({"schema": 1, "w": torch.zeros(9)}, whole, run / "flight" / ".spare", older=older)
    torn.write_bytes(whole.read_bytes()[:-1])
    flown = ring_reader.read_ring(ring_reader.find_rings(run)[0])
    shots = [ring_reader.Snapshot(torn, 2, 2), ring_reader.Snapshot(whole, 1, 1)]
    monkeypatch.setattr(
        recorded_step.ring_reader, "read_ring", lambda path: dataclasses.replace(flown, snapshots=shots)
    )
    answer = recorded_step.find(run)
    assert answer.snapshot == whole and answer.warnings[0] == "snapshot-0-b.pt is torn or gone"
    monkeypatch.undo()
    ring_reader.find_rings(run)[0].write_bytes(b"no ring")
    with pytest.raises(DataError, match="is not a ring"):
        recorded_step.find(run)


SCRIPT = """
import sys
from ocrlab.config.schema import load
from ocrlab.training.loop import fit

wanted = {"width": 16, "crop": 64, "batch_size": 2, "trainer.accelerator": "cpu", "trainer.max_steps": 4}
wanted |= {"trainer.val_every": 4, "trainer.val_pages": 1, "evaluate.long_side": 64, "runtime.threads": 1}
fit(load(overrides=wanted | {"trainer.precision": "fp32", "data": sys.argv[1], "runs": sys.argv[2]}))
"""


@pytest.mark.slow
def test_a_script_that_calls_fit_is_replayed_with_what_its_run_has_settled(tmp_path):
    """The warm-up of a short run is shortened when it begins; with that of the script's config losses differ."""
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT)
    data, runs = ROOT / "data_samples", tmp_path / "runs"
    subprocess.run([sys.executable, script, data, runs], check=True, capture_output=True, timeout=120)
    (run,) = runs.iterdir()
    answer = replay(run, 3)
    losses = [(step["loss"], step["recorded"]) for step in answer.record["cells"][0]["steps"]]
    assert len(losses) == 4 and all(again == recorded for again, recorded in losses)


def test_a_value_that_a_validation_had_stored_is_looked_for_from_its_first_batch_on() -> None:
    carried = {"kind": "nonfinite", "tensor": "input", "phase": "validation", "step": 3, "micro": 7, "samples": None}
    computed = {**carried, "tensor": "output aten::div", "micro": 5, "samples": [5], "names": ["13"]}
    about = SimpleNamespace(number=3, seconds=0.1, on_gpu=False, began_earlier=False, ended="failure", step=None)
    about.flight, about.from_start = SimpleNamespace(steps=[]), False
    matrix = replaying._Matrix(about, Path(), 0.0, print, began=0.0)  # type: ignore[arg-type]

    def run(variant: Variant) -> TrialResult:
        matrix.results.append(TrialResult(variant, fault=computed if matrix.results else carried, count=8))
        return matrix.results[-1]

    matrix.run = run  # type: ignore[method-assign]
    replaying._investigate(about, matrix)  # type: ignore[arg-type]
    asked = [(result.variant.name, result.variant.options.get("validate")) for result in matrix.results]
    assert asked == [("traced", None), ("whole validation", 0)]
    assert replay_summary.decided(matrix.results) is computed


@pytest.mark.slow
@pytest.mark.parametrize("what", ["counted", "called", "kept"])
def test_a_fault_that_depends_on_what_the_program_keeps_comes_again(tmp_path: Path, what: str) -> None:
    answer = replay(recorded(tmp_path, what, text=KEEPING))
    assert "first fault at step 29, loss" in answer.sentence and "is 7 at [1], allowed 0 to 2" in answer.sentence
    assert any(row[0].endswith("from the beginning") for row in answer.rows)
