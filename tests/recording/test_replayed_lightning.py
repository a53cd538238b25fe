"""A Lightning training whose replay goes over the end of an epoch: validation, early stopping, workers that stay."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ocrlab.rerun.replay import replay

PROGRAM = """
import sys, torch, lightning
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader
from ocrlab.train.recorder import Recorder

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


@pytest.mark.parametrize("reaches", [True, False])
def test_it_validates_between_epochs_and_asks_workers_that_stay_again(tmp_path: Path, reaches: bool) -> None:
    program, run = tmp_path / "program.py", tmp_path / "run"
    program.write_text(PROGRAM)
    done = subprocess.run([sys.executable, program, run], capture_output=True, timeout=120, check=False)
    assert done.returncode == 1 and b"cannot be multiplied" in done.stderr
    for path in [] if reaches else run.glob("flight/snapshot*"):
        path.unlink()
    found = replay(run)
    assert "first fault at step 21, forward, `net.0` (Linear 4->8), op `aten::addmm`" in found.sentence
    assert found.record["equal"] is True and len(found.record["cells"][0]["steps"]) >= 21 * (not reaches)
