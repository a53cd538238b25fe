"""Training steps in a child process, so that what crashes, hangs or computes nonsense does so here.

`python -m ocrlab.training.jobs.replay_step --device cuda` makes one on a small made-up batch and prints one JSON
object; with JOB in place of the option it runs recorded steps of an `ocrlab train` run again, as that file says.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path
from typing import NoReturn

from ocrlab import safe_read


def smoke_step(device: str) -> dict[str, object]:
    """Do one forward, backward and optimizer step on `device`; return loss and seconds; raises what it raises."""
    import torch

    from ocrlab.losses.db_loss import TargetMaps, db_loss
    from ocrlab.model.dbnet import Detector

    torch.manual_seed(0)
    start = time.perf_counter()
    model = Detector().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images = torch.randint(0, 256, (2, 3, 128, 128), dtype=torch.uint8).to(device)
    shrink = torch.zeros(2, 1, 128, 128)
    shrink[:, :, 40:80, 20:100] = 1
    ones = torch.ones_like(shrink)
    maps = TargetMaps(*(t.to(device) for t in (shrink, ones, 0.3 + 0.4 * shrink, ones)))
    output = model(images)
    loss = db_loss(output.probability_logits, output.threshold_logits, maps).total
    loss.backward()
    optimizer.step()
    value = float(loss.detach())
    if not math.isfinite(value) or not all(bool(p.isfinite().all()) for p in model.parameters()):
        raise FloatingPointError(f"the step gave loss {value} or weights that are not finite")
    return {"schema": 1, "device": device, "loss": value, "seconds": time.perf_counter() - start}


def replay(path: Path) -> NoReturn:
    """Run the recorded steps of a job again with the config of its run; ends the process, raises what training raises.

    `cell["config"]` of the job holds settings that win over the run's: {"trainer.accelerator": "cpu"}.
    """
    from ocrlab.debug.flight_record import program_info
    from ocrlab.records import from_json

    job = from_json(safe_read.read(path), source=str(path))
    os.environ[program_info.REPLAY] = str(path.absolute())

    from ocrlab.training.loop import recorded_config, replay_steps

    replay_steps(recorded_config(job))


def main() -> None:
    """Parse the command line and print the outcome."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", nargs="?", type=Path, help="the job of a replay")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if args.job is None:
        print(json.dumps(smoke_step(args.device)))
    else:
        replay(args.job)


if __name__ == "__main__":
    main()
