"""The memory that a training will need, estimated from its config.

`python -m ocrlab.training.jobs.estimate_memory JOB.json` takes the job that measure_memory takes. The step and the
largest page of its validation with fake tensors, and around them what is not a tensor.

Shapes: B batch, H W pixels of a crop.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from ocrlab import run_folder
from ocrlab.config.fields import flat
from ocrlab.config.schema import Config
from ocrlab.data import transforms
from ocrlab.debug.instruments.memory.estimate import Estimate, estimate, fake_copy
from ocrlab.losses.db_loss import TargetMaps, db_loss
from ocrlab.model.dbnet import Detector
from ocrlab.model.inference_graph import Fused, joined
from ocrlab.training import loop
from ocrlab.training.auto_settings import choose
from ocrlab.training.jobs import measure_memory, memory_meter
from ocrlab.training.lightning_module import save_memory

LIBRARIES = 22 << 20  # bytes that Lightning, OpenCV, oneDNN take later: with one crop of 64 px, half of it in the heap
# Bytes of free pieces that nothing fits into, for each byte at the highest moment of a step: graph nodes and gradients
# settle among the activations that are freed. Least squares over the 15 trainings of benchmarks/memory_fit.py.
HOLES = {"activations": 0.35, "workspace": 1.0}
FOLDING = 12  # bytes a number of the largest convolution, while weights are folded: in float64 and as it will be
DECODING = 5  # bytes a pixel of a probability map: where it is text, and the number of each region
MAP_BYTES = 3 + 4 * 4  # a pixel of a crop: uint8 RGB, and four float32 maps


def main(path: Path) -> None:
    """Estimate as the job says, and write the answer to its `out`; raises DataError, ConfigError."""
    job, config = measure_memory.load_job(path)
    run_folder.write_json(job["out"], {"schema": 1, **estimate_config(config)}, private=True)


def estimate_config(config: Config) -> dict[str, Any]:
    """Return the estimate of a config as plain data: its parts in bytes, and a line through two batch sizes."""
    machine = choose(config)
    count = len(loop.load(config.data, config.train_split, exif=config.exif).samples)
    settled = loop.settle_config(config, machine, count)
    size = config.batch_size
    first, last = (size, 2 * size) if size > 1 else (1, 4)
    steps = [estimate_step(settled, batch) for batch in (first, last)]  # without validation, which does not grow
    low, high = (step.peak + heap_holes(settled, step) for step in steps)
    slope = (high - low) / (last - first)
    samples = loop.load(settled.data, settled.val_split, exif=settled.exif).samples
    canvases = [transforms.letterbox((s.width, s.height), settled.evaluate)[1] for s in samples]
    largest = max(canvases, key=lambda canvas: canvas[0] * canvas[1], default=(32, 32))
    step = estimate_step(settled, size, largest)
    parts = all_parts(settled, step)
    peak = sum(parts.values())
    values = flat(settled)
    base = memory_meter.MemoryMeter(measure_memory.NOWHERE).base
    return {
        "pages": count,
        "settled": {key: values[key] for key in measure_memory.SETTLED},
        "parts": parts,
        "peak": peak,
        "tensors": step.peak,
        "module": step.module,
        "phase": step.phase,
        "base": base,
        "slope": slope,
        "offset": peak - slope * size + base,
        "space": memory_meter.MemoryMeter(measure_memory.NOWHERE, kind="address").base - base,
    }


def estimate_step(config: Config, batch: int, page: tuple[int, int] | None = None) -> Estimate:
    """Return the estimate of one training step as `Training` makes it, and of a page (width, height) after it."""
    side = config.crop
    bf16 = config.trainer.precision == "bf16"
    with torch.random.fork_rng(devices=[]):
        model = Detector(config.encoder, config.decoder, config.width)
    if config.runtime.channels_last is True:
        model = model.to(memory_format=torch.channels_last)
    images = torch.empty(batch, side, side, 3, dtype=torch.uint8, device="meta").permute(0, 3, 1, 2)  # (B, 3, H, W)
    maps = [torch.empty(batch, 1, side, side, device="meta") for _ in range(4)]

    def loss(network: nn.Module, batch: Any) -> Tensor:
        out = network(batch[0])
        targets = TargetMaps(*batch[1:])
        return db_loss(out.probability_logits, out.threshold_logits, targets).total

    form = joined(model, torch.bfloat16 if bf16 else torch.float32) if page else None
    save_memory(model, config)

    def validate(network: nn.Module) -> None:
        """Build the inference form and give it a page, as page_inference does."""
        if page is None or form is None:
            return
        room = torch.empty(FOLDING * max(p.numel() for p in network.parameters()), dtype=torch.uint8)
        canvas = torch.empty(1, page[1], page[0], 3, dtype=torch.uint8).permute(0, 3, 1, 2)  # (1, 3, H, W)
        imagined = cast(Fused, fake_copy(form))
        cast(
            fx.GraphModule, imagined.layers
        ).graph.owning_module = None  # as in model/inference_graph.py: no cycle keeps it
        del room
        heat = imagined.probability(canvas)  # (1, 1, H, W)
        torch.empty(DECODING * heat.numel(), dtype=torch.uint8)

    return estimate(
        model,
        [images, *maps],
        loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, fused=True),
        precision="bf16" if bf16 else "fp32",
        accumulation=config.trainer.accumulate_grad_batches,
        averaged=True,
        after=validate,
    )


def heap_holes(config: Config, step: Estimate) -> int:
    """Return the bytes that the heap of a training on the CPU takes beyond what is alive in it."""
    if config.trainer.accelerator != "cpu":
        return 0
    return round(sum(share * step.parts[name] for name, share in HOLES.items()))


def all_parts(config: Config, step: Estimate) -> dict[str, int]:
    """Return the parts of a whole training in bytes: those of its step, and what lies around it."""
    crops_ahead = 4 * (config.runtime.workers or 0) * config.batch_size
    return {
        **step.parts,
        "heap fragmentation": heap_holes(config, step),
        "snapshots": 4 * step.parts["parameters"] if config.recorder.on else 0,  # weights, averaged, and AdamW's two
        "batches ahead": crops_ahead * MAP_BYTES * config.crop**2,
        "decoded pages": measure_memory.later_pages(config) + measure_memory.resident_pages(config),
        "libraries": LIBRARIES,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    measure_memory.end_process()
