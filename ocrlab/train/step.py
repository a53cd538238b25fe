"""One training step on a small made-up batch, as a child process: `python -m ocrlab.train.step --device cuda`.

A device that crashes, hangs or computes nonsense does so here and not in the training. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import time


def run(device: str) -> dict[str, object]:
    """Do one forward, backward and optimiser step on `device`; return loss and seconds; raises what it raises."""
    import torch

    from ocrlab.losses import TargetMaps, db_loss
    from ocrlab.model.detector import Detector

    torch.manual_seed(0)
    start = time.perf_counter()
    model = Detector().to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images = torch.randint(0, 256, (2, 3, 128, 128), dtype=torch.uint8).to(device)
    shrink = torch.zeros(2, 1, 128, 128)
    shrink[:, :, 40:80, 20:100] = 1
    ones = torch.ones_like(shrink)
    maps = TargetMaps(*(t.to(device) for t in (shrink, ones, 0.3 + 0.4 * shrink, ones)))
    found = model(images)
    loss = db_loss(found.probability_logits, found.threshold_logits, maps).total
    loss.backward()
    optimiser.step()
    value = float(loss.detach())
    if not math.isfinite(value) or not all(bool(p.isfinite().all()) for p in model.parameters()):
        raise FloatingPointError(f"the step gave loss {value} or weights that are not finite")
    return {"schema": 1, "device": device, "loss": value, "seconds": time.perf_counter() - start}


def main() -> None:
    """Parse the command line and print the outcome."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    print(json.dumps(run(parser.parse_args().device)))


if __name__ == "__main__":
    main()
