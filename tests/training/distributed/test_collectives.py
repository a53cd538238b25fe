"""Several ranks against one process: real processes over gloo, with the environment that torchrun and srun give."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ocrlab import run_folder
from ocrlab.config import schema as configs
from ocrlab.data.dataset import Batch
from ocrlab.debug.flight_record import ring_reader
from ocrlab.debug.replay import recorded_step
from ocrlab.errors import ConfigError
from ocrlab.evaluation.metrics.page_scores import Running
from ocrlab.inference import Detector, checkpoint
from ocrlab.inference.scoring import score
from ocrlab.run_folder.launcher import Ranks, read
from ocrlab.run_folder.launcher import detect_ranks as ranks_of
from ocrlab.training.distributed import collectives
from ocrlab.training.loop import silent
from ocrlab.training.run_callback import RunCallback

PROGRAM = Path(__file__).parents[1].joinpath("forked_ranks.py")


def run(place: Path, *scenarios: str) -> Path:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    for name in [name for name in environment if name.startswith(("OCRLAB_", "SLURM_"))]:
        del environment[name]
    command = [sys.executable, str(PROGRAM), ",".join(scenarios), str(place)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    (place / "said.txt").write_text(done.stderr)
    return place


@pytest.fixture(scope="module")
def quick(tmp_path_factory) -> Path:
    return run(tmp_path_factory.mktemp("ranks") / "home", "equal", "figures")


@pytest.fixture(scope="module")
def slow(tmp_path_factory) -> Path:
    return run(tmp_path_factory.mktemp("slow-ranks") / "home", "tasks", "refused")


def rank_state(place: Path, rank: int | str) -> dict[str, Any]:
    return dict(torch.load(place / f"seen-{rank}.pt", weights_only=True))


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / a.norm())


def only_run(place: Path) -> Path:
    ((folder, record),) = run_folder.list_runs(place / "runs")
    assert record.status == "success"
    return folder


def test_two_ranks_equal_a_process_that_accumulates_two_batches(quick):
    alone, first, second = (rank_state(quick / "equal" / n, r) for n, r in (("alone", 0), ("ranks", 0), ("ranks", 1)))
    turns = [batch for pair in zip(first["pages"], second["pages"], strict=True) for batch in pair]
    assert turns == alone["pages"]
    losses = [loss for pair in zip(first["losses"], second["losses"], strict=True) for loss in pair]
    assert losses == pytest.approx(alone["losses"], rel=1e-6)
    assert len(alone["gradients"]) == len(first["gradients"]) == 3
    for whole, mine, other in zip(alone["gradients"], first["gradients"], second["gradients"], strict=True):
        assert apart(whole, mine) < 1e-6
        assert torch.equal(mine, other)
    for name, value in alone["weights"].items():
        if value.is_floating_point() and "running_" not in name:  # of which one process has seen two in a row
            assert apart(value, first["weights"][name]) < 1e-6, name


def test_all_ranks_end_with_the_same_weights_statistics_and_figures(quick):
    first, second = (rank_state(quick / "equal" / "ranks", rank) for rank in (0, 1))
    assert [n for n, value in first["weights"].items() if not torch.equal(value, second["weights"][n])] == []
    same = {name for name, value in first["metrics"].items() if second["metrics"][name] == value}
    assert {*first["metrics"]} - same <= {"seconds", "fit_seconds", "cpu_seconds"}


def test_the_checkpoint_scores_in_a_single_process_as_on_the_ranks(quick):
    folder = only_run(quick / "equal" / "ranks")
    (best,) = (folder / "checkpoints").glob("best-*.ckpt")
    measured = score(Detector.load(best), str(quick / "pages")).record()
    metrics = checkpoint.load(best)["ocrlab"]["metrics"]
    assert metrics["pages"] == 5
    assert {name: measured[name] for name in metrics if name in measured} == {
        n: metrics[n] for n in metrics if n in measured
    }
    assert metrics["hmean@0.5"] == measured["hmean@0.5"]


def test_there_is_a_single_run_folder_with_a_record_of_each_rank(quick):
    folder = only_run(quick / "equal" / "ranks")
    assert [record["end"]["how"] for record in read(folder / "flight")] == ["success", "success"]
    assert {ring_reader.parse_name(path)[0] for path in ring_reader.find_rings(folder)} == {0, 1}
    assert {ring_reader.read_ring(path).steps[-1].loss for path in ring_reader.find_rings(folder)} == {
        rank_state(quick / "equal" / "ranks", rank)["losses"][-1] for rank in (0, 1)
    }
    rows = (folder / "metrics.csv").read_text().splitlines()
    column = rows[0].split(",").index("loss")
    figures = [float(row.split(",")[column]) for row in rows[1:] if row.split(",")[column]]
    pairs = zip(*(rank_state(quick / "equal" / "ranks", rank)["losses"] for rank in (0, 1)), strict=True)
    assert figures == pytest.approx([sum(pair) / 2 for pair in pairs], rel=1e-7)
    assert configs.load(folder / "config.yaml").trainer.devices == 2
    assert "2 x batch_size 2 x accumulate_grad_batches 1 = 4 crops" in collectives.ranks_text(
        configs.load(folder / "config.yaml"), Ranks(0, 2, 0, 2, "torchrun")
    )


def test_a_replay_takes_a_single_rank_and_reports_that(quick):
    folder = only_run(quick / "equal" / "ranks")
    for rank in (0, 1):
        step = recorded_step.find(folder, rank=rank)
        assert step.flight.rank == rank
        assert any(f"rank {rank} of 2 is replayed alone" in warning for warning in step.warnings)
        started = recorded_step.environment(step, folder / "job.json")
        expected = ("1", "0", str(folder / "job.json"))
        assert (started["WORLD_SIZE"], started["RANK"], started["OCRLAB_REPLAY"]) == expected
        assert ranks_of(started) == Ranks()
    assert recorded_step.find(folder).flight.rank == 0, "of ranks that did well it is the first"
    with pytest.raises(ConfigError, match="no record of rank 7. Given: --rank 7. Needed: --rank N, one of 0, 1"):
        recorded_step.find(folder, rank=7)


def test_a_replay_after_a_hang_takes_the_rank_that_the_verdict_names(quick, tmp_path):
    """All ranks were asked to stop then, so their own records name none."""
    folder = Path(shutil.copytree(only_run(quick / "equal" / "ranks"), tmp_path / "run"))
    plain = {"world": 2, "end": None, "signal": None, "step": 3, "phase": "train"}
    rows = [
        {**plain, "rank": rank, "pid": 40 + rank, "pids": [40 + rank], "state": state}
        for rank, state in enumerate("ST")
    ]
    (folder / "incident").mkdir()
    for name, content in (("facts", {"ranks": rows}), ("verdict", {"status": "hung"})):
        (folder / "incident" / f"{name}.json").write_text(json.dumps({"schema": 1, **content}))
    assert recorded_step.find(folder).flight.rank == 1
    for path in folder.glob("flight/ring-1-*.bin"):
        path.unlink()
    with pytest.raises(ConfigError, match=r"Given: rank 1, the one to look at.*Needed: --rank N, one of 0"):
        recorded_step.find(folder)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_63_pages_over_ranks_add_up_to_the_last_bit(quick, world):
    whole = np.load(quick / "figures" / "state-1-0.npy")
    for rank in range(world):
        mine = np.load(quick / "figures" / f"state-{world}-{rank}.npy")
        assert mine.tobytes() == whole.tobytes()
        assert "page 5 0 times" in (quick / "figures" / f"refused-{world}-{rank}.txt").read_text()
    running = Running()
    running.state += whole
    assert running.compute()["pages"] == 63


@pytest.mark.parametrize("count", [1, 5, 63])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_every_page_is_the_share_of_a_single_rank_and_all_have_as_many_turns(count, world):
    shares = [collectives.page_share(count, Ranks(rank, world, rank, world)) for rank in range(world)]
    assert len({len(pages) for pages in shares}) == 1
    assert sorted(page for pages in shares for page in pages if page is not None) == list(range(count))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_page_that_any_rank_leaves_out_is_reported_once(rank, tmp_path, capsys):
    events: list[dict[str, Any]] = []
    mine = Ranks(rank, 2, rank, 2, "torchrun")
    folder = run_folder.RunFolder(tmp_path, run_folder.now())
    watcher = RunCallback(configs.load(), folder, None, events.append if rank == 0 else silent, mine)
    batch = Batch(torch.zeros(1, 3, 8, 8), (), ["p1"], ["p0: is damaged", "p0: is damaged"])
    trainer = SimpleNamespace(global_step=1, accumulate_grad_batches=2)
    for index in (0, 2):
        watcher.on_train_batch_end(trainer, SimpleNamespace(parts=None), None, batch, index)
    assert [event["text"] for event in events] == ["Page left out: p0: is damaged"] * (rank == 0)
    assert capsys.readouterr().err == "ocrlab: rank 1: Page left out: p0: is damaged\n" * (rank == 1)


def test_what_is_used_of_lightning_in_private_is_there():
    """Where it goes, its own broadcasts before each batch and inside of a signal handler come back."""
    from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
    from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector

    assert callable(_SignalConnector.register_signal_handlers)
    assert hasattr(_TrainingEpochLoop, "advance")


@pytest.mark.slow
def test_tasks_of_srun_on_two_nodes_train_a_single_epoch_together(slow):
    folder = only_run(slow / "tasks")
    assert [record["end"]["how"] for record in read(folder / "flight")] == ["success"] * 4
    looked_at = [page for rank in range(4) for batch in rank_state(slow / "tasks", rank)["pages"] for page in batch]
    assert len(looked_at) == 8 and len(set(looked_at)) == 7, "7 pages in two steps of four crops"


@pytest.mark.slow
@pytest.mark.parametrize("message", [
    "Rank 1 has pages in train of its own. Given: 6 pages",
    "has different settings",
    "trainer.sync_batchnorm=true needs GPUs",
    "A run folder cannot be made",
    "Rank 0 has no run folder",
])  # fmt: skip
def test_what_ranks_cannot_agree_upon_is_reported(slow, message):
    assert message in (slow / "said.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("resumed_by", ["two", "one"])
def test_sigterm_to_a_single_rank_stops_all_at_a_single_step_and_nothing_is_lost(stops, resumed_by):
    """The signal comes in the second micro-batch of step 1; words take a step, so that all stop after step 2."""
    first, second = (rank_state(stops / resumed_by / "first", rank) for rank in (0, 1))
    assert first["micro"] == second["micro"]
    assert first["micro"] % 2 == 0
    assert first["micro"] <= 3 + 1 + 2, "the step of the signal, and one more"
    whole = [rank_state(stops / "whole", rank) for rank in (0, 1)]
    if resumed_by == "two":
        rest = [rank_state(stops / "two", rank) for rank in (0, 1)]
        for rank in (0, 1):
            assert [first, second][rank]["losses"] + rest[rank]["losses"] == whole[rank]["losses"]
        weights = whole[0]["weights"]
        assert all(torch.equal(value, weights[name]) for name, value in rest[0]["weights"].items())
        return
    rest_alone = rank_state(stops / "one", 0)["pages"]
    turns = [batch for pair in zip(whole[0]["pages"], whole[1]["pages"], strict=True) for batch in pair]
    done = 2 * first["micro"]
    assert rest_alone == turns[done : done + len(rest_alone)], "it goes on where the two have stopped"


@pytest.fixture(scope="module")
def stops(tmp_path_factory) -> Path:
    return run(tmp_path_factory.mktemp("stopped-ranks") / "home", "stopped") / "stopped"
