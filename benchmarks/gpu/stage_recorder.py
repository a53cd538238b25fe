"""Stage C: what the recorder costs a step, that it never waits for the card, and whether a replay is bit for bit."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from stage import Stage
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import ocrlab

TARGETS = (0.020, 0.005, 0.100)  # seconds of a step; the one with a limit comes first
ROUNDS, TURN = 3, 0.7  # rounds of a turn with and one without the recorder, and seconds of each
# Steps of a turn that do not count, fewer where they take longer: looks of the training checks come at steps 0 to 4, 8,
# 16, 32 and each power of two, so that 35 steps of 20 ms hold the one at 64, and 7 of 100 ms none.
WARM, WARM_SECONDS = 33, 0.9
POOL = 16  # pages of noise that all samples are made of
STARTS = {0.005: 8, 0.020: 32, 0.100: 128}  # batch sizes at which the choice begins
LARGEST = 512  # pages of a batch
NEVER = 10**9
HERE = Path(__file__).parent


class Pages(Dataset[Tensor]):
    """As many different pages as anybody asks for, out of a few."""

    def __init__(self, side: int) -> None:
        self.pages = torch.rand(POOL, 3, side, side)

    def __len__(self) -> int:
        return 10**7

    def __getitem__(self, index: int) -> Tensor:
        page = self.pages[index % POOL].clone()
        page[0, 0, 0] = index * 1e-7  # no two samples are equal
        return page


def network(blocks: int = 20) -> nn.Module:
    """Return as many modules as a small detector has."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1)]
    for _ in range(blocks):
        layers.append(nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()))
    return nn.Sequential(*layers, nn.Conv2d(32, 1, 1))


def run(stage: Stage) -> None:
    """Look for waits, replay, then measure: what is judged on a card comes before what takes long."""
    torch.backends.cudnn.benchmark = True
    waits(stage)
    for deterministic in (True,) if stage.dry_run else (True, False):
        replayed(stage, deterministic)
    for target in TARGETS[:1] if stage.dry_run else TARGETS:
        cost(stage, target)


def cost(stage: Stage, target: float) -> None:
    """Train in turns with and without a recorder, with a batch whose step takes about `target` seconds."""
    side, device = (32 if stage.dry_run else 128), stage.device
    model: Any = network(2 if stage.dry_run else 20).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
    batch = batch_for(model, optimizer, side, device, 0.0 if stage.dry_run else target)
    loader = DataLoader(
        Pages(side), batch_size=batch, num_workers=0 if stage.dry_run else 2, pin_memory=not stage.dry_run
    )
    steps = 3 if stage.dry_run else max(7, round(TURN / target))
    warm = 3 if stage.dry_run else min(WARM, max(6, round(WARM_SECONDS / target)))
    plain, extra = [], []
    for number in range(1 if stage.dry_run else ROUNDS):
        pair: dict[bool, float] = {}
        for recorded in ((False, True), (True, False))[number % 2]:
            pair[recorded] = turn(
                stage.folder / f"cost-{target}-{number}", model, optimizer, loader, device, (warm, steps), recorded
            )
        plain.append(pair[False])
        extra.append(pair[True] - pair[False])
    step, more = statistics.median(plain), statistics.median(extra)
    share = more / step
    span = f"{min(extra) * 1e3:+.3f} to {max(extra) * 1e3:+.3f} ms"
    text = f"{more * 1e3:+.3f} ms of {step * 1e3:.1f} ms ({share:+.1%}; {span})"
    limit, met = ("at most 3 %", share <= 0.03) if target == 0.020 else ("", None)
    stage.row(f"recorder, a step of {target * 1e3:.0f} ms, 2 workers", text, limit, met)


def batch_for(model: Any, optimizer: Any, side: int, device: str, target: float) -> int:
    """Return the batch size whose step takes about `target` seconds, from 2 to `LARGEST`: the time grows with it."""
    if not target:
        return 2
    batch = STARTS[target]
    for _ in range(2):
        pages = torch.rand(batch, 3, side, side)
        seconds = min(timed(model, optimizer, itertools.repeat(pages), device, 2) for _ in range(2))
        batch = min(LARGEST, max(2, 2 * round(batch * target / seconds / 2)))
    return batch


def timed(model: Any, optimizer: Any, batches: Iterator[Tensor], device: str, steps: int, rec: Any = None) -> float:
    """Return the mean seconds of some steps, from a quiet card to a quiet card."""
    settle(device)
    began = time.perf_counter()
    for pages in itertools.islice(batches, steps):
        train_step(model, optimizer, pages, device, rec)
    settle(device)
    return (time.perf_counter() - began) / steps


def settle(device: str) -> None:
    """Wait for the card."""
    if device == "cuda":
        torch.cuda.synchronize()


def train_step(model: Any, optimizer: Any, pages: Tensor, device: str, rec: Any) -> None:
    """Make a step that itself never waits for the card."""
    loss = model(pages.to(device, non_blocking=True)).square().mean()
    if rec is not None:
        rec.loss(loss)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def turn(
    folder: Path, model: Any, optimizer: Any, loader: Any, device: str, counts: tuple[int, int], recorded: bool
) -> float:
    """Return the seconds of a step in one walk over the loader, with a recorder or without; `counts` are the steps
    that do not count and those that do.
    """
    warm, steps = counts
    if not recorded:
        batches = iter(loader)
        timed(model, optimizer, batches, device, warm)
        return timed(model, optimizer, batches, device, steps)
    with ocrlab.record(folder, model, optimizer, snapshot_every=NEVER) as rec:
        batches = iter(rec.batches(loader))
        timed(model, optimizer, batches, device, warm, rec)
        return timed(model, optimizer, batches, device, steps, rec)


def waits(stage: Stage) -> None:
    """Let torch raise where anything between loss and optimizer step waits for the card."""
    device, model = stage.device, network(2).to(stage.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
    loader = DataLoader(Pages(32), batch_size=2, pin_memory=device == "cuda")
    folder, error = stage.folder / "waits", ""
    with ocrlab.record(folder, model, optimizer, snapshot_every=NEVER) as rec:
        for number, pages in enumerate(itertools.islice(rec.batches(loader), 12)):
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("error" if number >= 4 else "default")
            try:
                train_step(model, optimizer, pages, device, rec)
            except RuntimeError as raised:
                error = str(raised).splitlines()[0]
                break
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    own = folder / "flight" / "ocrlab-errors.log"
    wait = error or (own.read_text(encoding="utf-8")[-300:] if own.exists() else "")
    stage.row("synchronisations by loss, step and recorder", wait or "0", "0", not wait)


def replayed(stage: Stage, deterministic: bool) -> None:
    """Record twenty steps and replay them; compare the losses."""
    name = "deterministic" if deterministic else "not deterministic"
    folder = stage.folder / f"replayed-{int(deterministic)}"
    words: list[str | Path] = [HERE / "recorded_training.py", folder, stage.device]
    stage.child([*words, *(["--deterministic"] if deterministic else [])], 60)
    answer = stage.child(["-m", "ocrlab", "replay", folder, "--step", "19", "--timeout", "60", "--json"], 75).json()
    steps = (answer.get("cells") or [{}])[0].get("steps") or []
    compared = [step for step in steps if step.get("equal") is not None]
    equal = sum(step["equal"] for step in compared)
    apart = max((abs(step["loss"] / step["recorded"] - 1) for step in compared), default=float("nan"))
    text = f"{equal} of {len(compared)} losses equal bit for bit, largest relative difference {apart:.1e}"
    stage.row(
        f"20 steps replayed, {name}", text, "20 of 20" if deterministic else "", equal == 20 if deterministic else None
    )
