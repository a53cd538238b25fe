"""Stage H, only by name: a full ResNet-18 training on the receipts, compared with the shipped detector page by page.

`--data FOLDER` names the receipts (train/ and val/ with images/ and gts/), re-encoded so that they fit what travels.
"""

from __future__ import annotations

from pathlib import Path

from stage import Stage, sample_pages

COMPARE = Path(__file__).with_name("compare_detectors.py")
RECIPE = (  # of benchmarks/results/accuracy.md, for a card
    "encoder=resnet18",
    "width=128",
    "crop=640",
    "batch_size=16",
    "optim.lr=0.002",
    "trainer.precision=bf16",
    "runtime.channels_last=true",
)


def run(stage: Stage) -> None:
    """Train as long as the time allows, evaluate both on the same pages, and compare."""
    data = stage.data
    if data is None and not stage.dry_run:
        stage.row("accuracy", "not run: --data FOLDER names no receipts")
        return
    runs = stage.folder / "runs"
    words = ["-m", "ocrlab", "train", "--in-process", f"runs={runs}"]
    if stage.dry_run:
        words += [
            *sample_pages(stage),
            "crop=64",
            "batch_size=1",
            "trainer.max_steps=1",
            "trainer.val_every=1",
            "trainer.val_pages=1",
        ]
    else:
        minutes = (stage.seconds_left - 60) / 60
        words += [f"data={data}", *RECIPE, f"trainer.max_minutes={minutes:.2f}", "trainer.val_every=1000"]
    words += [f"trainer.accelerator={stage.device}"]
    done = stage.child(words)
    checkpoint = next(iter(sorted(runs.glob("*/checkpoints/best*.ckpt"))), None)
    text = f"status {done.status}, {done.seconds:.0f} s, checkpoint {checkpoint and checkpoint.name}"
    stage.row("training", text, "status 0", done.status == 0, dry_run_too=True)
    if checkpoint is None or data is None:
        return
    size = checkpoint.stat().st_size / 1e6
    answer = stage.child([COMPARE, data, checkpoint], 120)
    stage.row("trained less shipped, 95 % interval", f"{answer.out.strip()}; checkpoint {size:.1f} MB",
              "above 0, at most 10 MB", answer.status == 0 and size <= 10)  # fmt: skip
