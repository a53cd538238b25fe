"""What a training will need, estimated from its config: the step with fake tensors, and around it what is no tensor.

Shapes: B batch, H W pixels of a crop.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ocrlab.config import Config
from ocrlab.losses import TargetMaps, db_loss
from ocrlab.model.detector import Detector
from ocrlab.settings.fields import flat
from ocrlab.trace.estimate import Estimate, estimate
from ocrlab.train import fit, fitting, weighing
from ocrlab.train.machine import choose

LIBRARIES = 22 << 20  # bytes that Lightning, OpenCV, oneDNN take later: with one crop of 64 px, half of it in the heap
VALIDATING = 12  # bytes a parameter, at most: the averaged weights copied, folded, and packed
MAP_BYTES = 3 + 4 * 4  # a pixel of a crop: uint8 RGB, and four float32 maps


def of_config(config: Config) -> dict[str, Any]:
    """Return the estimate of a config as plain data: its parts in bytes, and a line through two batch sizes."""
    machine = choose(config)
    count = len(fit.load(config.data, config.train_split, exif=config.exif).samples)
    settled = fit.settled(config, machine, count)
    size = config.batch_size
    asked = sorted({size, 2 * size} if size > 1 else {1, 4})
    steps = {batch: of_step(settled, batch) for batch in asked}
    sums = {batch: whole(settled, step) for batch, step in steps.items()}
    first, last = asked[0], asked[-1]
    peaks = {batch: sum(parts.values()) for batch, parts in sums.items()}
    high = {batch: max(step.heap, step.peak) for batch, step in steps.items()}  # without what one part hides of another
    slope = (high[last] - high[first]) / (last - first)
    step = steps[size]
    values = flat(settled)
    base = weighing.Scales(fitting.NOWHERE).base
    return {
        "pages": count,
        "settled": {key: values[key] for key in fitting.SETTLED},
        "parts": sums[size],
        "peak": peaks[size],
        "tensors": step.peak,
        "module": step.module,
        "phase": step.phase,
        "base": base,
        "slope": slope,
        "offset": peaks[size] - slope * size + base,
        "space": weighing.Scales(fitting.NOWHERE, kind="address").base - base,
    }


def of_step(config: Config, batch: int) -> Estimate:
    """Return the estimate of one training step as train/module.py makes it."""
    side = config.crop
    with torch.random.fork_rng(devices=[]):
        model: nn.Module = Detector(config.encoder, config.decoder, config.width)
    if config.runtime.channels_last is True:
        model = model.to(memory_format=torch.channels_last)
    images = torch.empty(batch, side, side, 3, dtype=torch.uint8, device="meta").permute(0, 3, 1, 2)  # (B, 3, H, W)
    maps = [torch.empty(batch, 1, side, side, device="meta") for _ in range(4)]

    def loss(network: nn.Module, given: Any) -> Tensor:
        out = network(given[0])
        targets = TargetMaps(*given[1:])
        return db_loss(out.probability_logits, out.threshold_logits, targets).total

    return estimate(
        model,
        [images, *maps],
        loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, fused=True),
        precision="bf16" if config.trainer.precision == "bf16" else "fp32",
        accumulation=config.trainer.accumulate_grad_batches,
        averaged=True,
    )


def whole(config: Config, step: Estimate) -> dict[str, int]:
    """Return the parts of a whole training in bytes: those of its step, and what lies around it."""
    parts = dict(step.parts)
    if config.trainer.accelerator == "cpu":
        parts["holes of the heap"] = max(0, step.heap - step.peak)
    weights = parts["parameters"]
    parts["snapshots"] = 4 * weights if config.recorder.on else 0  # weights, averaged ones, and what AdamW keeps
    workers = config.runtime.workers or 0
    ahead = workers * 4 * config.batch_size
    parts["batches ahead"] = ahead * MAP_BYTES * config.crop**2
    parts["decoded pages"] = fitting.held_later(config) + fitting.held_now(config)
    parts["libraries"] = LIBRARIES
    held = sum(parts[name] for name in ("parameters", "averaged weights", "optimiser state", "gradients"))
    room = step.peak - held + parts.get("holes of the heap", 0)
    parts["validation"] = max(0, VALIDATING * (weights // 4) - 8 * (weights // 4) - room)
    return parts
