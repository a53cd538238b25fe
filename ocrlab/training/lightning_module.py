"""The Lightning module: it wires detector, loss, optimizer, averaging and metric together, and holds nothing else.

Shapes: B batch, H W input pixels.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import lightning
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ocrlab.config.schema import Config
from ocrlab.data.dataset import Batch, Page
from ocrlab.debug.recorder import rng_state
from ocrlab.evaluation.metrics.page_scores import Running
from ocrlab.inference import checkpoint, page_inference
from ocrlab.losses.db_loss import LossParts, TargetMaps, db_loss
from ocrlab.model.dbnet import Detector
from ocrlab.model.memory_saving import freeze
from ocrlab.run_folder.launcher import Ranks
from ocrlab.training.auto_settings import Machine
from ocrlab.training.distributed import collectives
from ocrlab.training.optimizer import adamw, learning_rate

CURVES = {"hmean": "hmean@0.5", "deteval": "deteval_hmean", "cleval": "cleval_hmean"}  # val/hmean and so on


class Training(lightning.LightningModule):
    """Trains `detector` and keeps `averaged`, the exponential moving average of its weights, which is what is used."""

    def __init__(self, config: Config, machine: Machine, ranks: Ranks | None = None) -> None:
        super().__init__()
        self.config, self.machine, self.ranks = config, machine, ranks or Ranks()
        imagenet = config.weights if config.weights == "imagenet" else None
        self.detector = Detector(config.encoder, config.decoder, config.width, imagenet)
        if machine.channels_last:
            self.detector = self.detector.to(memory_format=torch.channels_last)
        self.averaged = copy.deepcopy(self.detector).eval().requires_grad_(False)
        save_memory(self.detector, config)
        # Kept out of the module tree: a compiled module would change every name in the checkpoint.
        self._run = [torch.compile(self.detector) if config.runtime.compile else self.detector]
        self.judged: dict[int, NDArray[np.float64]] = {}  # the pages of this validation that are this rank's
        self.scores: dict[str, float] = {}  # of the last validation that was not left
        self.scored = -1  # the optimizer step that it was made at
        self.parts: LossParts | None = None  # of the last micro-batch
        self.micro = 0  # micro-batches done since the run began
        self.crops_done = 0  # crops that all ranks have learned from: where the walk over the pages goes on
        self.finish_batch: Callable[[lightning.Trainer], None] | None = None  # may save: called when all else is done
        self._pending: dict[str, Any] | None = None  # restored once the trainer has put everything on its device

    def training_step(self, batch: Batch, _index: int) -> Tensor:
        maps = self._run[0](batch.images)
        weights = (self.config.loss.bce, self.config.loss.dice, self.config.loss.l1)
        targets = TargetMaps(*batch.maps)
        logits, ratio = (maps.probability_logits, maps.threshold_logits), self.config.loss.negative_ratio
        parts = db_loss(*logits, targets, weights=weights, negative_ratio=ratio)
        # Without its graph: nodes of graphs that are kept lie all over the heap, and its free pieces cannot join.
        self.parts = parts._replace(total=parts.total.detach())
        return parts.total

    def on_train_batch_end(self, *_: Any) -> None:
        self.micro += 1
        self.crops_done += self.ranks.world * self.config.batch_size
        if self.micro % self.trainer.accumulate_grad_batches == 0:
            collectives.mean_buffers(self.ranks, self.detector, collectives.strategy_group(self.trainer.strategy))
            average(self.averaged, self.detector, self.config.optim.ema, self.trainer.global_step)
        if self.finish_batch is not None:
            self.finish_batch(self.trainer)

    def on_validation_epoch_start(self) -> None:
        self.judged = {}

    def validation_step(self, page: Page | None, index: int) -> None:
        if page is not None:
            score = page_inference.judge(self.averaged, page, self.config, bf16=self.machine.bf16)
            self.judged[index * self.ranks.world + self.ranks.rank] = score.counts

    def on_validation_epoch_end(self) -> None:
        page_inference.free_fused(self.averaged)
        if not self.trainer.sanity_checking:  # of which not every rank may have a page
            loaders: Any = self.trainer.val_dataloaders
            self.scores = figures(collectives.sum_scores(self.ranks, self.judged, len(loaders.dataset)))
            self.scored = self.trainer.global_step

    def transfer_batch_to_device(self, batch: Any, device: torch.device, _loader: int) -> Any:
        if not isinstance(batch, Batch) or device.type == "cpu":
            return batch  # a page for validation moves in pages.probability
        maps = tuple(m.to(device, non_blocking=True) for m in batch.maps)
        return Batch(batch.images.to(device, non_blocking=True), maps, batch.pages, batch.problems)  # type: ignore[arg-type]

    def configure_optimizers(self) -> Any:
        optim, wanted = self.config.optim, self.config.trainer  # asked at each step: a Budget may change them
        optimizer = adamw(self.detector, optim)

        def rate(step: int) -> float:
            return learning_rate(step, optim.warmup_steps, wanted.max_steps)

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        # Lightning refuses to clip for a fused optimizer because of fp16's loss scaling; bf16 and fp32 scale nothing.
        if gradient_clip_val:
            torch.nn.utils.clip_grad_norm_(self.detector.parameters(), float(gradient_clip_val))

    def on_save_checkpoint(self, content: dict[str, Any]) -> None:
        content["ocrlab"] = checkpoint.card(self.config, self.trainer.global_step, self.scores)
        content["ocrlab"] |= {"micro": self.micro, "seen": self.crops_done, "scored": self.scored}
        states = rng_state.take().items()
        content["random"] = {name: torch.frombuffer(bytearray(state), dtype=torch.uint8) for name, state in states}
        if self.micro % self.trainer.accumulate_grad_batches:  # between two micro-batches of one step
            named = self.detector.named_parameters()
            content["gradients"] = {name: p.grad.clone() for name, p in named if p.grad is not None}

    def on_load_checkpoint(self, content: dict[str, Any]) -> None:
        self.micro, self.scores = content["ocrlab"]["micro"], content["ocrlab"]["metrics"]
        self.crops_done = content["ocrlab"].get("seen", self.micro * self.config.batch_size)  # before there were ranks
        self.scored = content["ocrlab"].get("scored", -1)
        self._pending = {"random": content["random"], "gradients": content.get("gradients", {})}

    def on_train_start(self) -> None:
        if self._pending is None:
            return
        parameters = dict(self.detector.named_parameters())
        for name, gradient in self._pending["gradients"].items():
            parameters[name].grad = gradient.to(parameters[name].device)
        states = self._pending["random"]
        if isinstance(states["python"], Tensor):  # an older version stored them in another form
            rng_state.restore({name: bytes(state.numpy()) for name, state in states.items()})
        self._pending = None


def save_memory(detector: Detector, config: Config) -> None:
    """Let a detector train in less memory as the config says, after its copies for validation were made."""
    detector.encoder.checkpoint_activations = config.runtime.activation_checkpointing  # type: ignore[assignment]
    if config.optim.freeze_batchnorm:
        freeze(detector.encoder)


def figures(running: Running) -> dict[str, float]:
    """Return the figures of all pages without those by size, and the three hmeans again under the names of curves."""
    scores = {name: value for name, value in running.compute().items() if "/" not in name}
    return scores | {f"val/{curve}": scores[name] for curve, name in CURVES.items()}


@torch.no_grad()
def average(averaged: torch.nn.Module, current: torch.nn.Module, decay: float, step: int) -> None:
    """Move the averaged weights and buffers towards the current ones; the decay grows from 0.1 over the first steps."""
    decay = min(decay, (1 + step) / (10 + step))
    pairs: list[tuple[Tensor, Tensor]] = [*zip(averaged.parameters(), current.parameters(), strict=True)]
    buffers = [*zip(averaged.buffers(), current.buffers(), strict=True)]
    pairs += [(a, c) for a, c in buffers if a.dtype.is_floating_point]
    get_ema_multi_avg_fn(decay)([a for a, _ in pairs], [c for _, c in pairs], step)
    for mean, value in buffers:
        if not mean.dtype.is_floating_point:
            mean.copy_(value)
