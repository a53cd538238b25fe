"""Stage F: what CUDA_LAUNCH_BLOCKING=1 costs a training step of the detector; guides say 20 to 30 %."""

from __future__ import annotations

from pathlib import Path

from stage import Stage

CODE = """
import sys
sys.path.insert(0, {here!r})
from pathlib import Path
from detector_step import SLIM, batch, training_step
from stage import Stage
from stage_training import timed
stage = Stage("blocking", Path({out!r}), {dry_run!r}, 60, None)
step = training_step(SLIM, batch({count}, {side}, stage.device), stage.device, bf16={bf16}, channels_last=True)
print(timed(step, stage))
"""


def run(stage: Stage) -> None:
    """Time the same steps in two children, a small batch that launches bind and a large one that the card binds."""
    for count, side in ((1, 64),) if stage.dry_run else ((2, 320), (16, 640)):
        seconds = {}
        for blocking in ("0", "1"):
            code = CODE.format(
                here=str(Path(__file__).parent),
                out=str(stage.folder.parents[1]),
                dry_run=stage.dry_run,
                count=count,
                side=side,
                bf16=not stage.dry_run,
            )
            done = stage.child(["-c", code], 40, CUDA_LAUNCH_BLOCKING=blocking)
            seconds[blocking] = float(done.out.split()[-1]) if done.status == 0 else float("nan")
        more = seconds["1"] / seconds["0"] - 1
        text = f"{seconds['0'] * 1e3:.1f} ms, {seconds['1'] * 1e3:.1f} ms with it ({more:+.0%})"
        stage.row(f"CUDA_LAUNCH_BLOCKING=1, batch {count} at {side} px", text, "measured", seconds["0"] > 0)
