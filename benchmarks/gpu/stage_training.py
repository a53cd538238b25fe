"""Stage D: pages per second of the detector's training, format by format, and whether the loader keeps up."""

from __future__ import annotations

import csv
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from detector_step import FULL, SLIM, batch, training_step
from stage import Stage, sample_pages
from torch.utils.flop_counter import FlopCounterMode

from ocrlab.losses.db_loss import TargetMaps, db_loss

FORMATS: tuple[tuple[str, dict[str, bool]], ...] = (
    ("eager fp32", {}),
    ("bf16 + channels_last", {"bf16": True, "channels_last": True}),
    ("bf16 + channels_last + compile", {"bf16": True, "channels_last": True, "compiled": True}),
)


def run(stage: Stage) -> None:
    """Measure the formats, the card's own rate, the loss in a CUDA graph, and a training with its loader."""
    count, side = (1, 64) if stage.dry_run else (16, 640)
    data = batch(count, side, stage.device)
    rate = card_rate(stage)
    fastest = 0.0
    for kind in (SLIM,) if stage.dry_run else (FULL, SLIM):
        plain = 0.0
        for name, options in FORMATS[:2] if stage.dry_run else FORMATS:
            step = training_step(kind, data, stage.device, **options)
            seconds = timed(step, stage)
            plain = plain or seconds
            flops = operations(step) if options.get("bf16") and not options.get("compiled") else 0.0
            text = f"{count / seconds:.0f} images/s ({plain / seconds:.2f} times eager fp32)"
            text += (
                f", {flops / seconds / 1e12:.0f} TFLOP/s, {flops / seconds / rate:.0%} of the card's" if flops else ""
            )
            limit, met = ("at least 4 times", plain / seconds >= 4) if options.get("compiled") else ("", None)
            stage.row(f"{kind[0]}, {side} px, batch {count}, {name}", text, limit, met)
            if kind == SLIM:
                fastest = max(fastest, count / seconds)
            del step
    loss_in_a_graph(stage, data)
    loader(stage, fastest)


def timed(step: Callable[[], Any], stage: Stage) -> float:
    """Return the median seconds of a step, after what compiles and chooses."""
    for _ in range(1 if stage.dry_run else 4):
        step()
    seconds = []
    for _ in range(2 if stage.dry_run else 15):
        settle(stage)
        began = time.perf_counter()
        step()
        settle(stage)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def settle(stage: Stage) -> None:
    """Wait for the card."""
    if stage.device == "cuda":
        torch.cuda.synchronize()


def operations(step: Callable[[], Any]) -> float:
    """Return the floating-point operations of a step, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        step()
    return float(counter.get_total_flops())


def card_rate(stage: Stage) -> float:
    """Return the operations per second of a large bf16 matrix product."""
    side = 256 if stage.dry_run else 8192
    left, right = (torch.randn(side, side, device=stage.device, dtype=torch.bfloat16) for _ in range(2))
    seconds = timed(lambda: left @ right, stage)
    stage.row(f"bf16 matrix product, {side} squared", f"{2 * side**3 / seconds / 1e12:.0f} TFLOP/s")
    return 2 * side**3 / seconds


def loss_in_a_graph(stage: Stage, data: tuple[torch.Tensor, TargetMaps]) -> None:
    """Capture the DB loss and its gradient in a CUDA graph; the loss must be the same."""
    images, targets = data
    shape = (len(images), 1, *images.shape[2:])
    logits = [torch.randn(shape, device=stage.device, requires_grad=True) for _ in range(2)]

    def loss() -> torch.Tensor:
        total = db_loss(*logits, targets).total
        return torch.autograd.grad(total, logits[0], retain_graph=False)[0].sum() + total.detach()

    expected = loss()
    if stage.device != "cuda":
        stage.row("DB loss in a CUDA graph", "not captured on a CPU")
        return
    side_stream = torch.cuda.Stream()
    with torch.cuda.stream(side_stream):
        for _ in range(3):
            loss()
    torch.cuda.current_stream().wait_stream(side_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = loss()
    graph.replay()
    torch.cuda.synchronize()
    eager, replayed = timed(loss, stage), timed(graph.replay, stage)
    same = torch.allclose(captured, expected, rtol=1e-4)
    text = f"{eager * 1e3:.2f} ms eager, {replayed * 1e3:.2f} ms captured, values {'equal' if same else 'differ'}"
    stage.row("DB loss and gradient in a CUDA graph", text, "equal", same)


def loader(stage: Stage, fastest: float) -> None:
    """Train on the samples with more and more workers; compare with the rate of the step alone."""
    crop, size, steps = ("64", "2", "4") if stage.dry_run else ("640", "16", "40")
    cores = len(os.sched_getaffinity(0))
    for workers in (0,) if stage.dry_run else sorted({4, 8, max(1, cores - 2)}):
        runs = stage.folder / f"loader-{workers}"
        words = [
            "-m",
            "ocrlab",
            "train",
            "--in-process",
            *sample_pages(stage),
            f"runs={runs}",
            f"crop={crop}",
        ]
        words += [
            f"batch_size={size}",
            f"trainer.max_steps={steps}",
            f"trainer.val_every={steps}",
            "trainer.val_pages=1",
        ]
        words += ["trainer.log_every=2", f"runtime.workers={workers}", f"trainer.accelerator={stage.device}"]
        done = stage.child(words, 60)
        rates = [
            float(row["images_per_second"])
            for path in runs.glob("*/metrics.csv")
            for row in csv.DictReader(path.open(encoding="utf-8"))
            if row.get("images_per_second")
        ]
        rate = statistics.median(rates[len(rates) // 2 :]) if rates else 0.0
        share = rate / fastest if fastest else 0.0
        what = f"ocrlab train, {crop} px, {workers} workers"
        if not rates:
            stage.row(what, f"no figure, status {done.status}", "a figure", False, dry_run_too=True)
            continue
        limit, met = ("at least 90 %", share >= 0.9) if workers == max(1, cores - 2) else ("", None)
        stage.row(what, f"{rate:.0f} images/s, {share:.0%} of the step alone", limit, met)
