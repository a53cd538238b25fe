"""One side of `step.py` in a process of its own: builds a network with its training, then does a step on request.

A step is zero_grad, forward, loss, backward and optimizer step. For every line on stdin one JSON object is answered.

Shapes: B batch, H W pixels.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import resource
import sys
import time
import types
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ocrlab.config.schema import Config
from ocrlab.data import target_maps
from ocrlab.data.dataset import Batch, collate
from ocrlab.model.dbnet import MEAN, STD
from ocrlab.training.auto_settings import Machine, keep_freed_memory
from ocrlab.training.lightning_module import Training, average

Step = Callable[[], float]  # does one training step and returns its loss
LINE = 28  # pixels from one line of text to the next


def main() -> None:
    """Build the side and answer; whatever else it prints goes to stderr, so that no peer can spoil an answer."""
    options = ArgumentParser(description=__doc__)
    options.add_argument("name", help="'ours bf16', 'ours fp32' or a peer")
    options.add_argument("--path", type=Path, default=Path(), help="checkout of the peer")
    options.add_argument("--size", type=int, default=640)
    options.add_argument("--threads", type=int, default=2)
    args = options.parse_args()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    try:
        batch = noise_batch(args.size)
        if args.name.startswith("ours"):
            step, parameters = ours(batch, args.threads, bf16=args.name.endswith("bf16"))
        else:
            step, parameters = PEERS[args.name](args.path, batch)
        print(json.dumps({"parameters": parameters}), file=answers)
        for _ in sys.stdin:
            print(json.dumps(timed(step)), file=answers)
    except Exception as error:  # a peer may fail in any way; the table then says how
        print(json.dumps({"fault": f"{type(error).__name__}: {error}"}), file=answers)


def timed(step: Step) -> dict[str, float]:
    """Return wall and CPU seconds of one step and the peak memory so far in GiB; raises if the loss is not finite."""
    wall, cpu = time.perf_counter(), time.process_time()
    loss = step()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if not math.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss}, so this is not a training")
    return {"wall": wall, "cpu": cpu, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def noise_batch(size: int) -> Batch:
    """Return two pages of noise with target maps of as many text lines as a receipt has; the same for every side."""
    rng = np.random.default_rng(0)
    items: list[tuple[NDArray[np.uint8], target_maps.Targets, str, list[str]]] = []
    for name in ("first", "second"):
        image = rng.integers(0, 256, (size, size, 3), dtype=np.uint8)
        lines = []
        for top in range(4, size - LINE, LINE):
            left, right = size * rng.uniform(0.02, 0.4), size * rng.uniform(0.5, 0.98)
            lines.append(np.array([[left, top], [right, top], [right, top + 20], [left, top + 20]], dtype=np.float32))
        flags = np.zeros(len(lines), dtype=bool)
        maps = target_maps.make(
            lines, flags, (size, size), shrink_ratio=0.4, threshold_range=(0.3, 0.7)
        )  # as published
        items.append((image, maps, name, []))
    return collate(items)


def ours(batch: Batch, threads: int, *, bf16: bool) -> tuple[Step, int]:
    """Return the step of `ocrlab train`, made of its own parts, and the number of parameters."""
    keep_freed_memory()
    config = Config(encoder="resnet18", width=128)  # the encoder that the peers have
    module = Training(config, Machine("cpu", threads, 0, bf16, channels_last=True, reasons={}))
    wired = module.configure_optimizers()
    optimizer, schedule = wired["optimizer"], wired["lr_scheduler"]["scheduler"]
    steps = 0

    def step() -> float:
        nonlocal steps
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16, cache_enabled=False):  # as Lightning does
            loss = module.training_step(batch, steps)
        optimizer.zero_grad()
        loss.backward()
        module.configure_gradient_clipping(optimizer, config.optim.grad_clip)
        optimizer.step()
        schedule.step()
        steps += 1
        average(module.averaged, module.detector, config.optim.ema, steps)
        return float(loss.detach())

    return step, sum(p.numel() for p in module.detector.parameters())


def official(path: Path, batch: Batch) -> tuple[Step, int]:
    """Return the step of a checkout of MhLiao/DB (Liao et al. 2020) in fp32, eager, and its number of parameters.

    Settings of its ICDAR2015 experiment with ResNet-18, but plain convolutions: its deformable ones need a GPU.
    """
    if not (path / "decoders" / "seg_detector.py").is_file():
        raise FileNotFoundError("what --peer official names is not a checkout of MhLiao/DB")
    sys.path.insert(0, str(path))
    for name in ("assets.ops.dcn", "scipy.ndimage"):  # imported by the checkout, not used by this network and loss
        stand_in(name)
    encoder = importlib.import_module("backbones").resnet18(pretrained=False)
    del encoder.fc, encoder.smooth  # built there, never run
    channels = [64, 128, 256, 512]
    decoder = importlib.import_module("decoders").SegDetector(channels, 256, k=50, bias=False, adaptive=True)
    criterion = importlib.import_module("decoders.seg_detector_loss").L1BalanceCELoss()
    model = torch.nn.Sequential(encoder, decoder).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.007, momentum=0.9, weight_decay=1e-4)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    images = ((batch.images - mean) / std).contiguous()  # (B, 3, H, W); its loader does this, so it is not timed
    shrink, mask, border, border_mask = (m.float() for m in batch.maps)  # (B, 1, H, W)
    truth = {"gt": shrink, "mask": mask[:, 0], "thresh_map": border[:, 0], "thresh_mask": border_mask[:, 0]}

    def step() -> float:
        optimizer.zero_grad()
        loss: torch.Tensor = criterion(model(images), truth)[0]
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step, sum(p.numel() for p in model.parameters())


def stand_in(name: str) -> None:
    """Put empty modules where `name` and its parents would be imported from, unless they are there and work."""
    try:
        importlib.import_module(name)
    except Exception:  # absent, or compiled for another machine
        module = sys.modules[name] = types.ModuleType(name)
        parent, _, leaf = name.rpartition(".")
        if parent:
            stand_in(parent)
            setattr(sys.modules[parent], leaf, module)


PEERS: dict[str, Callable[[Path, Batch], tuple[Step, int]]] = {"official": official}

if __name__ == "__main__":
    main()
