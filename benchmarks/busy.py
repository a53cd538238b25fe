"""What does a training step cost on a machine that does something else too? With libgomp's own waiting, and with ours.

python benchmarks/busy.py                     both ways in turn, alone and beside one busy process
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Sequence

from table import figure, markdown, page, parser, publish

from ocrlab.hardware import openmp

SITUATIONS = {"alone": 0, "beside one busy process": 1, "beside two": 2}
STEPS = """
import sys, time, torch
from ocrlab.config.schema import Config
from ocrlab.losses.db_loss import TargetMaps, db_loss
from ocrlab.model.dbnet import Detector

batch, side, steps = map(int, sys.argv[1:])
torch.set_num_threads(2)
torch.manual_seed(0)
config = Config()
model = Detector(config.encoder, config.decoder, config.width).train().to(memory_format=torch.channels_last)
images = torch.randint(0, 255, (batch, 3, side, side), dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
text, ones = (torch.rand(batch, 1, side, side) > 0.7).float(), torch.ones(batch, 1, side, side)
maps = TargetMaps(text, ones, text * 0.4 + 0.3, ones)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(steps + 3):
    began = time.perf_counter()
    prediction = model(images)
    loss = db_loss(prediction.probability_logits, prediction.threshold_logits, maps).total
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step >= 3:
        print(time.perf_counter() - began)
"""


def main() -> None:
    """Print the table: the median step of each way in each situation."""
    arguments = parser(__doc__)
    arguments.add_argument("--turns", type=int, default=3, help="processes of each way and situation (default 3)")
    arguments.add_argument("--batch", type=int, default=4, help="crops in a step (default 4)")
    arguments.add_argument("--side", type=int, default=256, help="pixels (default 256)")
    arguments.add_argument("--steps", type=int, default=15, help="of each process (default 15)")
    args = arguments.parse_args()
    variables = {name: text for name, text in os.environ.items() if name not in openmp.SETTINGS}
    ours = dict(variables)
    openmp.sleep_soon(ours)
    rows = []
    for situation, busy in SITUATIONS.items():
        turns = [
            [steps((args.batch, args.side, args.steps), env, busy) for env in (variables, ours)]
            for _ in range(args.turns)
        ]
        left, right = (statistics.median(turn[side] for turn in turns) for side in (0, 1))
        spread = " ".join(f"{a:.2f}/{b:.2f}" for a, b in turns)
        figure(f"a step, threads asleep after 1,000 turns: {situation}", right, "s")
        figure(f"a step, libgomp's own waiting: {situation}", left, "s")
        rows.append((situation, f"{left:.2f}", f"{right:.2f}", f"{left / right:.2f}", spread))
    header = ("a step on two threads", "libgomp's own, s", "asleep after 1,000 turns, s", "ratio", "each turn")
    publish("busy", page("A training step on a busy machine", markdown(header, rows)), args)


def steps(size: Sequence[int], env: dict[str, str], busy: int) -> float:
    """Return the median seconds of a step in a process, beside some that are busy."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        command = [sys.executable, "-c", STEPS, *map(str, size)]
        done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    finally:
        for other in others:
            other.kill()
            other.wait()
    return statistics.median(map(float, done.stdout.split()))


if __name__ == "__main__":
    main()
