"""The recorder in Lightning: our own training and a foreign one, recorded and run again bit for bit."""

import contextlib
import json
import pickle
import random
import subprocess
import sys
from pathlib import Path

import cv2
import lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ocrlab.config import schema as configs
from ocrlab.debug.flight_record import program_info, ring_reader, training_findings
from ocrlab.debug.recorder.lightning_callback import Recorder
from ocrlab.training import loop
from tests.debug.recorder.recorded_runs import newest, replay


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.delenv(program_info.REPLAY, raising=False)


class Pairs(Dataset):
    def __len__(self):
        return 22

    def __getitem__(self, index):
        return torch.randn(8) + random.random(), index % 3


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
        self.average = torch.optim.swa_utils.AveragedModel(self.net)
        self.loss = nn.CrossEntropyLoss()

    def training_step(self, batch, _index):
        x, y = batch
        return self.loss(self.net(x), y) + self.average.module(x).square().mean().detach()

    def on_train_batch_end(self, *_):
        self.average.update_parameters(self.net)

    def validation_step(self, batch, _index):
        self.log("val", self.loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9), "interval": "step"}]


def foreign(folder: Path, recorder: Recorder, model: lightning.LightningModule | None = None, *more) -> None:
    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=3, precision="bf16-mixed", accumulate_grad_batches=2, gradient_clip_val=0.5,
        callbacks=[*more, recorder, ModelCheckpoint(folder / "saved")], default_root_dir=folder, logger=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    loader = DataLoader(Pairs(), 4, shuffle=True, drop_last=True)
    trainer.fit(model or Model(), loader, DataLoader(Pairs(), 11))


@pytest.mark.filterwarnings("ignore")
def test_a_foreign_lightning_project_is_replayed_bit_for_bit(tmp_path, monkeypatch):
    foreign(tmp_path, Recorder(snapshot_every=4))
    flight = newest(tmp_path)
    assert [step.micro for step in flight.steps] == list(range(15))
    assert [step.epoch for step in flight.steps] == [0] * 5 + [1] * 5 + [2] * 5
    assert flight.now.stage == "loss"
    assert program_info.read(tmp_path)["kind"] == "lightning"
    saved = {path: path.stat().st_mtime_ns for path in (tmp_path / "saved").iterdir()}
    result = replay(tmp_path, monkeypatch, lambda: foreign(tmp_path, Recorder(snapshot_every=4)))
    assert result["finished"]
    assert [step["micro"] for step in result["steps"]] == list(range(flight.snapshots[-1].micro, 15))
    assert all(step["equal"] for step in result["steps"])
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "saved").iterdir()} == saved


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wrong", [True, False])
def test_a_run_that_ended_in_its_validation_is_validated_again(tmp_path, monkeypatch, wrong):
    class Strict(Model):
        def validation_step(self, batch, index):
            if wrong and index == 1 and self.current_epoch == 1:
                batch[1][4] = 9
            super().validation_step(batch, index)

    again = lambda: foreign(tmp_path, Recorder(snapshot_every=4), Strict())  # noqa: E731
    with pytest.raises(IndexError) if wrong else contextlib.nullcontext():
        again()
    flight = newest(tmp_path)
    cell = {"validate": 1, "cell": {"trace": True}}
    result = replay(tmp_path, monkeypatch, again, **cell)
    assert all(step["equal"] for step in result["steps"]) and result["finished"] is not wrong
    if wrong:
        assert (flight.now.phase, flight.sample.partition(":")[0]) == ("validation", "validation batch 1")
        fault = json.loads((tmp_path / "replay" / "trace.json").read_text())["fault"]
        assert (fault["phase"], fault["kind"], fault["value"], fault["names"]) == ("validation", "target", "9", ["15"])


@pytest.mark.filterwarnings("ignore")
def test_an_exception_leaves_phase_stage_and_no_hook(tmp_path):
    class Broken(Model):
        def on_before_optimizer_step(self, _optimizer):
            if self.global_step == 2:
                raise RuntimeError("here")

    model = Broken()
    recorder = Recorder(tmp_path)
    with pytest.raises(RuntimeError, match="here"):
        foreign(tmp_path, recorder, model)
    flight = newest(tmp_path)
    assert (flight.now.number, flight.now.phase) == (2, "optimiser")
    assert flight.now.loss is not None
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert recorder.undo == []


@pytest.fixture
def pages(tmp_path) -> Path:
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        (tmp_path / "data" / split / "images").mkdir(parents=True)
        (tmp_path / "data" / split / "gts").mkdir()
        for i in range(3):
            image = rng.integers(0, 255, (96, 96, 3), np.uint8)
            cv2.imwrite(str(tmp_path / "data" / split / "images" / f"p{i}.png"), image)
            text = "8,8,80,8,80,24,8,24,bar"
            (tmp_path / "data" / split / "gts" / f"gt_p{i}.txt").write_text(text)
    return tmp_path / "data"


def tiny(pages: Path, runs: Path, *more: str) -> configs.Config:
    words = f"data={pages} runs={runs} width=32 crop=64 batch_size=2 trainer.max_steps=5 trainer.val_every=3"
    words += " trainer.accumulate_grad_batches=2 trainer.accelerator=cpu trainer.precision=bf16 runtime.workers=0"
    words += " runtime.channels_last=true runtime.threads=1 evaluate.long_side=96 recorder.snapshot_every=2"
    return configs.load(overrides=[*words.split(), *more])


def test_our_own_training_records_by_default_and_replays_bit_for_bit(pages, runs, monkeypatch):
    run = loop.fit(tiny(pages, runs)).folder
    flight = newest(run)
    assert [step.micro for step in flight.steps] == list(range(10))
    assert [step.number for step in flight.steps] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert all(name.startswith("p") for step in flight.steps for name in step.samples)
    assert flight.steps[2].epoch == 1
    assert (flight.now.phase, flight.now.stage) == ("data", ""), "no stage of the forward is reported with it"
    assert {path.stat().st_mode & 0o077 for path in (run / "flight").iterdir()} == {0}
    before = sorted(path.name for path in run.rglob("*") if "replay" not in path.parts)
    result = replay(run, monkeypatch, lambda: loop.fit(configs.load(run / "config.yaml")))
    assert result["finished"]
    assert len(result["steps"]) >= 4
    assert all(step["equal"] for step in result["steps"])
    after = sorted(path.name for path in run.rglob("*") if "replay" not in path.relative_to(run).parts)
    assert [name for name in after if name not in before] == []
    assert len(list(runs.iterdir())) == 1


def test_it_can_be_switched_off(pages, runs):
    run = loop.fit(tiny(pages, runs, "recorder.on=false", "trainer.max_steps=1")).folder
    assert ring_reader.find_rings(run) == []


def test_what_is_used_of_lightning_in_private_is_there():
    trainer = lightning.Trainer(logger=False, enable_checkpointing=False, accelerator="cpu")
    connector = trainer._checkpoint_connector
    assert hasattr(connector, "_ckpt_path")
    assert hasattr(connector, "_loaded_checkpoint")
    assert callable(connector.resume_start)
    assert callable(connector.dump_checkpoint)
    assert hasattr(trainer.fit_loop.epoch_loop, "total_batch_idx")
    assert {"ready", "completed"} <= trainer.fit_loop.epoch_loop.batch_progress.current.__dict__.keys()
    assert callable(trainer.strategy.process_dataloader)


@pytest.mark.filterwarnings("ignore")
def test_batches_of_several_validation_loaders_are_counted_together(tmp_path, monkeypatch):
    class Rows(Dataset):
        def __init__(self, bad=-1):
            self.bad = bad

        def __len__(self):
            return 6

        def __getitem__(self, index):
            return {
                "x": torch.full((8,), float(index)),
                "y": 9 if index == self.bad else index % 3,
                "id": f"{self.bad}/{index}",
            }

    class Two(Model):
        def training_step(self, batch, _index):
            return self.loss(self.net(batch["x"]), batch["y"])

        def validation_step(self, batch, _index, dataloader_idx=0):
            self.loss(self.net(batch["x"]), batch["y"])

        def on_train_batch_end(self, *_):
            return

    def again():
        lightning.seed_everything(0, verbose=False)
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=1, callbacks=[Recorder(snapshot_every=4)], default_root_dir=tmp_path,
            logger=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
            enable_checkpointing=False,
        )  # fmt: skip
        trainer.fit(Two(), DataLoader(Rows(), 2), [DataLoader(Rows(), 2), DataLoader(Rows(bad=3), 2)])

    with pytest.raises(IndexError):
        again()
    assert newest(tmp_path).sample == "validation batch 4: 3/2, 3/3"
    replay(tmp_path, monkeypatch, again, validate=4, cell={"trace": True})
    fault = json.loads((tmp_path / "replay" / "trace.json").read_text())["fault"]
    assert (fault["phase"], fault["value"], fault["names"]) == ("validation", "9", ["3/3"])


@pytest.mark.filterwarnings("ignore")
def test_what_failed_behind_the_last_batch_of_an_epoch_fails_again(tmp_path, monkeypatch):
    class Checks(Model):
        def on_train_epoch_end(self):
            if self.current_epoch == 1:
                raise ValueError("the weights are broken")

    again = lambda: foreign(tmp_path, Recorder(snapshot_every=4), Checks())  # noqa: E731
    with pytest.raises(ValueError, match="broken"):
        again()
    assert newest(tmp_path).now.phase == "data", "it was in no step any more"
    last = newest(tmp_path).now.number + 1
    result = replay(tmp_path, monkeypatch, again, last=last)
    assert result["behind"] and result["error"]["message"] == "the weights are broken"


class Wrapping(lightning.LightningModule):
    """As most are: `training_step` calls the network in it, not the module itself; validation forgets a transform."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.net, self.factor = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)), factor

    def training_step(self, batch, _index):
        return nn.functional.mse_loss(self.net(batch), batch.sum(1, keepdim=True))

    def validation_step(self, batch, _index):
        self.net(self.factor * batch)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)


@pytest.mark.parametrize("factor", [1.0, 50.0])
def test_what_training_step_calls_is_what_is_looked_at(tmp_path, factor):
    data = DataLoader(torch.randn(128, 8), 16)
    trainer = lightning.Trainer(
        max_epochs=3, callbacks=[Recorder(tmp_path)], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, accelerator="cpu",
    )  # fmt: skip
    trainer.fit(Wrapping(factor), data, data)
    findings = "\n".join(training_findings.read(tmp_path) or [])
    assert ("validation gives the model other numbers" in findings) == (factor > 1), findings
    assert factor > 1 or findings == ""


def test_an_import_of_the_recorder_draws_no_numbers():
    code = "import random; a = random.getstate(); import ocrlab.debug.recorder.lightning_callback\n"
    code += "print(random.getstate() == a)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "True", "rich draws a number when it is imported"


def test_a_recorder_can_be_sent_to_the_processes_that_lightning_spawns():
    sent = pickle.loads(pickle.dumps(Recorder("runs/mine", steps=9)))
    assert (str(sent.folder), sent.steps) == ("runs/mine", 9)
    sent.undo_batch()
