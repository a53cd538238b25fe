"""A replay inside a Lightning trainer: steps get other batches than its hooks, and epochs may end on the way."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import lightning
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ocrlab.debug.flight_record import program_info
from ocrlab.debug.replay.child import lightning_resume
from ocrlab.debug.replay.replay_job import replay

IMAGES = [(torch.full((3, 8 + i, 8), float(i)), {"boxes": torch.zeros(i, 4)}) for i in range(6)]


class Detector(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Conv2d(3, 1, 3)
        self.calls: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        images, targets = batch
        self.calls.append(("training", batch_idx, [int(image[0, 0, 0]) for image in images], len(targets)))
        return torch.stack([self.net(image).mean() for image in images]).sum()

    def validation_step(self, batch: Any, _index: int) -> None:
        self.calls.append(("validation", _index, [int(image[0, 0, 0]) for image in batch[0]], len(batch[1])))

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), max_iter=2)  # makes a step's gradients more than once


class Chosen(lightning.Callback):
    """Leaves of the second batch only its last sample, as a fork for one sample does."""

    def __init__(self) -> None:
        self.take_back = lightning_resume.hand_over(None, "", None, None)

    def choose(self, module: Any, step: str, batch: Any, index: int) -> None:
        chosen = tuple(part[-1:] for part in batch) if index == 1 else batch
        self.take_back()
        self.take_back = lightning_resume.hand_over(module, step, batch, chosen)

    def on_train_batch_start(self, _trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.choose(module, "training_step", batch, batch_idx)

    def on_validation_batch_start(self, _trainer: Any, module: Any, batch: Any, batch_idx: int, _: int = 0) -> None:
        self.choose(module, "validation_step", batch, batch_idx)


@pytest.mark.filterwarnings("ignore")
def test_a_step_uses_another_batch_until_that_is_taken_back() -> None:
    model, chosen = Detector(), Chosen()
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=1, callbacks=[chosen], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    data = DataLoader(IMAGES, 2, collate_fn=lambda samples: tuple(zip(*samples, strict=True)))  # type: ignore[arg-type]
    trainer.fit(model, data, data)
    each = {kind: [call[1:] for call in model.calls if call[0] == kind] for kind in ("training", "validation")}
    assert sorted({str(call) for call in each["training"]}) == ["(0, [0, 1], 2)", "(1, [3], 1)", "(2, [4, 5], 2)"]
    assert sum(call[0] == 1 for call in each["training"]) > 1, "each time that the step asks for its gradients"
    assert each["validation"] == [(0, [0, 1], 2), (1, [3], 1), (2, [4, 5], 2)]
    assert not {"training_step", "validation_step"} & model.__dict__.keys()


PROGRAM = """
import sys, torch, lightning
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader
from ocrlab.debug.recorder.lightning_callback import Recorder

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))
    def training_step(self, batch, index):
        if self.global_step == 21:
            batch = batch[:, :3]
        return self.net(batch).square().mean()
    def validation_step(self, batch, index):
        self.log("score", self.net(batch).mean())
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        plateau = ReduceLROnPlateau(optimizer, patience=0, factor=0.5, mode="max")
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "score"}}

if __name__ == "__main__":
    data = DataLoader(torch.randn(12, 4), 3, shuffle=True, num_workers=1, persistent_workers=True)
    callbacks = [Recorder(sys.argv[1], snapshot_every=10), EarlyStopping("score", patience=50)]
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=9, callbacks=callbacks, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(Model(), data, DataLoader(torch.randn(4, 4), 2))
"""


@pytest.mark.slow
@pytest.mark.parametrize("reaches", [True, False])
def test_it_validates_between_epochs_and_asks_workers_that_stay_again(tmp_path, reaches: bool) -> None:
    program, run = tmp_path / "program.py", tmp_path / "run"
    program.write_text(PROGRAM)
    done = subprocess.run([sys.executable, program, run], capture_output=True, timeout=120, check=False)
    assert done.returncode == 1 and b"cannot be multiplied" in done.stderr
    for path in [] if reaches else run.glob("flight/snapshot*"):
        path.unlink()
    answer = replay(run)
    assert "first fault at step 21, forward, `net.0` (Linear 4->8), op `aten::addmm`" in answer.sentence
    assert answer.record["equal"] is True and len(answer.record["cells"][0]["steps"]) >= 21 * (not reaches)


def test_an_error_in_a_process_that_lightning_has_started_reaches_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(lightning.Trainer._run_stage), "what is used of Lightning in private is there"

    class Trainer:
        def _run_stage(self) -> None:
            raise ValueError("a torn page")

    noted: list[BaseException] = []
    replayed: Any = SimpleNamespace(failed=noted.append)
    trainer: Any = Trainer()
    lightning_resume.report_errors(replayed, trainer)()
    assert not vars(trainer), "in the first process of a program Lightning calls on_exception"
    monkeypatch.setattr(program_info, "process_path", lambda: [1])
    undo = lightning_resume.report_errors(replayed, trainer)
    with pytest.raises(ValueError, match="a torn page"):
        trainer._run_stage()
    assert [str(error) for error in noted] == ["a torn page"]
    undo()
    assert not vars(trainer)
