"""Stage E: predicted against measured peak memory, `memory fit` against a real limit."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stage import Stage, sample_pages

MEASURE = Path(__file__).with_name("measured_training.py")
SETTINGS = (
    ("crop=512", "batch_size=4"),
    ("crop=512", "batch_size=16"),
    ("crop=640", "batch_size=8"),
    ("crop=640", "batch_size=32"),
    ("crop=640", "batch_size=8", "trainer.precision=fp32"),
    ("crop=640", "batch_size=8", "runtime.channels_last=false"),
    ("crop=640", "batch_size=8", "encoder=resnet18", "width=128"),
    ("crop=640", "batch_size=16", "encoder=resnet18", "width=128", "runtime.activation_checkpointing=true"),
    ("crop=640", "batch_size=8", "encoder=resnet34"),
    ("crop=640", "batch_size=8", "encoder=resnet50", "decoder=unet"),
    ("crop=512", "batch_size=8", "encoder=mobilenet_v3_large"),
    ("crop=640", "batch_size=4", "decoder=unet", "trainer.accumulate_grad_batches=2"),
)


def run(stage: Stage) -> None:
    """Predict and measure each setting, some at a time; then look for the largest batch."""
    settings = SETTINGS[:1] if stage.dry_run else SETTINGS
    with ThreadPoolExecutor(1 if stage.dry_run else 6) as pool:
        near = list(pool.map(lambda setting: compare(stage, setting), settings))
    within = sum(ratio is not None and abs(ratio - 1) <= 0.1 for ratio in near)
    stage.row("peak predicted within 10 %", f"{within} of {len(near)}", "10 of 12", within >= 10)
    words = common(stage, ("crop=640", "encoder=resnet18", "width=128"))
    minutes = "0.1" if stage.dry_run else "0.5"
    done = stage.child(["-m", "ocrlab", "memory", "fit", *words, "--limit", "12", "--minutes", minutes, "--json"], 60)
    answer = {key: value for key, value in done.json().items() if isinstance(value, int | float | str)}
    stage.row("memory fit, 12 GB", f"{json.dumps(answer)[:400]}; {done.seconds:.0f} s", "an answer", done.status == 0)


def common(stage: Stage, setting: tuple[str, ...]) -> list[str]:
    """Return a setting as words of the command line, small on a CPU."""
    words = [*sample_pages(stage), f"trainer.accelerator={stage.device}", "runtime.workers=2", *setting]
    return [*words, "crop=64", "batch_size=1", "runtime.workers=0"] if stage.dry_run else words


def compare(stage: Stage, setting: tuple[str, ...]) -> float | None:
    """Return predicted over measured peak of the card's memory for one setting."""
    words = common(stage, setting)
    predicted = stage.child(["-m", "ocrlab", "memory", "estimate", *words, "--json"], 60).json().get("peak")
    runs = stage.folder / "-".join(word.rpartition("=")[2] for word in setting)
    done = stage.child([MEASURE, *words, f"runs={runs}"], 60)
    measured = json.loads(done.out.splitlines()[-1]) if done.status == 0 and done.out else {}
    peak = measured.get("allocated")
    if not predicted or not peak:
        stage.row(
            f"memory, {' '.join(setting)}",
            f"predicted {predicted}, measured {measured}, status {done.status}",
            "both known",
            False,
            dry_run_too=True,
        )
        return None
    text = f"predicted {predicted / 1e9:.2f} GB, allocated {peak / 1e9:.2f}, reserved {measured['reserved'] / 1e9:.2f}"
    stage.row(f"memory, {' '.join(setting)}", f"{text} ({predicted / peak:.2f})")
    return float(predicted / peak)
