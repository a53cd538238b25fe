"""A script that patches ocrlab and trains: the third kind of program that flight.py plants faults into."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flight_faults import BLANK, Plan, Planted
from flight_truth import Truth, states
from torch import Tensor
from torch.utils.data import get_worker_info

from ocrlab.config.schema import load
from ocrlab.data import dataset
from ocrlab.training import lightning_module, loop

ROOT = Path(__file__).parents[1]


def train(plan: Plan, truth: Truth, begin: Callable[[], None]) -> None:
    """Train a small detector on the sample receipts with the fault of the plan in it."""
    patch_data(plan, truth)
    patch_training(plan, truth)
    settings = {
        "data": str(ROOT / "data_samples"),
        "runs": str(Path(plan.folder, "runs")),
        "seed": plan.seed,
        "width": 16,
        "crop": 64,
        "batch_size": plan.batch,
        "trainer.accelerator": "cpu",
        "trainer.precision": "bf16" if plan.bf16 else "fp32",
        "trainer.max_steps": plan.steps,
        "trainer.val_every": plan.steps,
        "trainer.val_pages": 1,
        "evaluate.long_side": 64,
        "trainer.accumulate_grad_batches": plan.accumulate,
        "runtime.threads": 1,
        "runtime.workers": plan.workers,
        "runtime.channels_last": False,
        "recorder.batches": plan.batches,
        "recorder.snapshot_every": plan.snapshot_every,
    }
    begin()
    loop.fit(load(overrides=settings))


def patch_data(plan: Plan, truth: Truth) -> None:
    """Change one page, and tell which page each worker is on."""
    own = dataset.Crops.__getitem__

    def item(self: Any, index: tuple[int, int]) -> Any:
        info = get_worker_info()
        slot = 1 + info.id if info else 1
        name = self.samples[index[1]].name
        truth.now(slot, f"{index[1]} {name} begun")
        time.sleep(plan.pause)
        crop, maps, name, problems = own(self, index)
        if index[1] == plan.page and plan.fault:
            crop, maps = damaged(plan, crop, maps)
        truth.now(slot, f"{index[1]} {name} done")
        return crop, maps, name, problems

    dataset.Crops.__getitem__ = item  # type: ignore[method-assign]


def damaged(plan: Plan, crop: Any, maps: Any) -> tuple[Any, Any]:
    """Return the drawn page with what is wrong with it."""
    row, column = plan.seed % 60, plan.seed * 7 % 60
    if plan.fault == "target":
        wrong = np.array(maps.shrink_map)
        wrong[wrong > 0] = 255
        wrong[row, column] = 255
        return crop, replace(maps, shrink_map=wrong)
    if plan.fault == "nan_page":
        wrong, mask = np.array(maps.threshold_map), np.array(maps.threshold_mask)
        wrong[row, column], mask[row, column] = math.nan, 1
        return crop, replace(maps, threshold_map=wrong, threshold_mask=mask)
    if plan.fault in BLANK or plan.fault == "shape":
        return np.full_like(crop, 255), maps
    return crop, maps


def patch_training(plan: Plan, truth: Truth) -> None:
    """Plant the fault, print losses exactly, and stop at a loss or gradient that cannot be right."""
    begin, step, end = (
        getattr(lightning_module.Training, name) for name in ("__init__", "training_step", "on_train_batch_end")
    )

    def ended(self: Any, *rest: Any) -> None:
        truth.now(0, f"{self.micro} done")
        end(self, *rest)

    def initialised(self: Any, *rest: Any, **named: Any) -> None:
        begin(self, *rest, **named)
        planted = Planted(self.detector, self, plan, truth)
        planted.clock = lambda: self.micro
        self.__dict__["planted"] = planted

    def stepped(self: Any, batch: Any, index: int) -> Tensor:
        rate = float(self.trainer.optimizers[0].param_groups[0]["lr"]).hex()
        truth.write("batch", micro=self.micro, names=list(batch.pages), lr=rate, states=states())
        truth.now(0, f"{self.micro} forward")
        total: Tensor = step(self, batch, index)
        if plan.fault in ("log_of_zero", "zero_count"):
            probability = self.detector(batch.images).probability
            total = total + self.planted.loss(probability, batch.maps[0])
        truth.write("loss", micro=self.micro, value=float(total.detach()).hex())
        if not torch.isfinite(total) or total < 0:
            raise FloatingPointError(f"loss is {float(total)} at micro-batch {self.micro}")
        truth.now(0, f"{self.micro} backward")
        return total

    def clip(self: Any, *_: Any, **__: Any) -> None:
        truth.now(0, f"{self.micro} optimizer")
        torch.nn.utils.clip_grad_norm_(self.detector.parameters(), 5.0, error_if_nonfinite=True)

    lightning_module.Training.__init__ = initialised  # type: ignore[method-assign]
    lightning_module.Training.training_step = stepped  # type: ignore[method-assign]
    lightning_module.Training.configure_gradient_clipping = clip  # type: ignore[method-assign]
    lightning_module.Training.on_train_batch_end = ended  # type: ignore[method-assign]
