"""Runs one plan: `python benchmarks/flight_victim.py PLAN.json`, as a Lightning project, a loop, or ocrlab's training.

A replay starts the same command again; nothing here knows whether it is one.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from flight_faults import Plan, Planted, read
from flight_pages import Net, Scans
from flight_truth import Truth, states
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader


def main() -> None:
    """Run the plan to its end."""
    run(read(Path(sys.argv[1])))


def run(plan: Plan) -> None:
    """Run a plan to its end in this process."""
    truth = Truth(Path(plan.folder))
    torch.set_num_threads(1)
    torch.manual_seed(plan.seed)
    {"lightning": lightning_project, "loop": loop, "train": detector}[plan.program](plan, truth)
    truth.write("end")


def loader(plan: Plan, truth: Truth, collate: Any = None) -> DataLoader[Any]:
    """Return a shuffled loader, as everybody writes it."""
    return DataLoader(
        Scans(plan, truth), batch_size=plan.batch, shuffle=True, num_workers=plan.workers, collate_fn=collate
    )


def losses(logits: Tensor, mask: Tensor, planted: Planted) -> Tensor:
    """Return cross-entropy of logits (B, 2, H, W) and mask (B, H, W), with the user's own term."""
    own = planted.loss(logits.softmax(1)[:, 1:], (mask == 1).to(logits.dtype)[:, None])
    total = cross_entropy(logits.float(), mask) + own
    if not torch.isfinite(total):
        raise FloatingPointError(f"loss is {float(total)}")
    return total


def before(rate: float) -> dict[str, Any]:
    """Return what the program itself knows before a step: its learning rate, and where its generators stand."""
    return {"lr": float(rate).hex(), "states": states()}


def dies(plan: Plan, truth: Truth) -> None:
    """Start the thread that ends the process at its moment."""

    def later() -> None:
        while not truth.counts[0]:  # the first step
            time.sleep(0.001)
        time.sleep(plan.die_after)
        if plan.die == "exit":
            os._exit(7)
        ctypes.string_at(0)

    truth.write("started", workers=plan.workers)
    if plan.die and not truth.replay:
        threading.Thread(target=later, daemon=True).start()


def lightning_project(plan: Plan, truth: Truth) -> None:
    """Train with Lightning: manual of nothing, dict batches, dropout, a teacher that averages the weights."""
    import lightning

    from ocrlab.debug.recorder.lightning_callback import Recorder

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()
            self.teacher = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
            self.teacher.requires_grad_(False)
            self.planted = Planted(self.net, self, plan, truth)
            self.planted.clock = lambda: int(self.net.clock)

        def training_step(self, batch: dict[str, Any], _index: int) -> Tensor:
            rate = self.trainer.optimizers[0].param_groups[0]["lr"]
            truth.write("batch", micro=int(self.net.clock), names=list(batch["file_name"]), **before(rate))
            truth.now(0, f"{int(self.net.clock)} forward")
            logits = self.net(batch["pixels"], batch["source"])
            with torch.no_grad():
                taught = self.teacher(batch["pixels"], batch["source"]) if plan.fault is None else logits.detach()
            total = losses(logits, batch["mask"], self.planted) + 0.1 * (logits - taught).square().mean()
            truth.write("loss", micro=int(self.net.clock) - 1, value=float(total.detach()).hex())
            truth.now(0, f"{int(self.net.clock) - 1} backward")
            return total

        def on_train_batch_end(self, *_: Any) -> None:
            truth.now(0, f"{int(self.net.clock) - 1} done")
            self.teacher.update_parameters(self.net)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.net.parameters(), lr=2e-3)
            return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 10), "interval": "step"}]

        def configure_gradient_clipping(self, *_: Any, **__: Any) -> None:
            truth.now(0, f"{int(self.net.clock) - 1} optimizer")
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 5.0, error_if_nonfinite=True)

    trainer = lightning.Trainer(
        max_steps=plan.steps,
        accelerator="cpu",
        accumulate_grad_batches=plan.accumulate,
        precision="bf16-mixed" if plan.bf16 else "32-true",
        callbacks=[Recorder(Path(plan.folder, "run"), batches=plan.batches, snapshot_every=plan.snapshot_every)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    dies(plan, truth)
    trainer.fit(Lit(), loader(plan, truth))


def loop(plan: Plan, truth: Truth) -> None:
    """Train in a hand-written loop: tuple batches, accumulation, clipping, a scheduler, averaged weights."""
    from ocrlab.debug.recorder.loop_recorder import recording

    def collate(items: list[dict[str, Any]]) -> tuple[Any, ...]:
        pixels, mask = (torch.stack([item[name] for item in items]) for name in ("pixels", "mask"))
        names = ([item["file_name"] for item in items],) if plan.names else ()
        return pixels, mask, torch.tensor([item["source"] for item in items]), *names

    model = Net()
    planted = Planted(model, model, plan, truth)
    planted.clock = lambda: int(model.clock)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, plan.steps)
    data = loader(plan, truth, collate)
    dies(plan, truth)
    steps = 0
    keys = {"batches": plan.batches, "snapshot_every": plan.snapshot_every}
    with recording(Path(plan.folder, "run"), model, optimizer, scheduler=scheduler, **keys) as rec:
        while steps < plan.steps:
            for number, (pixels, mask, source, *names) in enumerate(rec.batches(data)):
                micro = int(model.clock)
                rate = optimizer.param_groups[0]["lr"]
                truth.write("batch", micro=micro, names=names[0] if names else None, **before(rate))
                truth.now(0, f"{micro} forward")
                with torch.autocast("cpu", torch.bfloat16, enabled=plan.bf16):
                    logits = model(pixels, source)
                loss = losses(logits, mask, planted)
                truth.write("loss", micro=micro, value=float(loss.detach()).hex())
                rec.loss(loss)
                truth.now(0, f"{micro} backward")
                (loss / plan.accumulate).backward()
                if (number + 1) % plan.accumulate == 0:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0, error_if_nonfinite=True)
                    truth.now(0, f"{micro} optimizer")
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                    averaged.update_parameters(model)
                    steps += 1
                truth.now(0, f"{micro} done")
                if steps >= plan.steps:
                    break


def detector(plan: Plan, truth: Truth) -> None:
    """Train with ocrlab's own fit, changed by a few patches as people do who try something."""
    from flight_detector import train

    train(plan, truth, lambda: dies(plan, truth))


if __name__ == "__main__":
    main()
