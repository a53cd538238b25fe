"""Compare a checkpoint with the shipped detector on val pages: `python compare_detectors.py DATA CHECKPOINT`.

The exit status is 0 where the 95 % interval of the difference in hmean@0.5 lies above 0.
"""

from __future__ import annotations

import sys

import torch

import ocrlab

if __name__ == "__main__":
    index = ocrlab.data.load(sys.argv[1], "val")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    scores = []
    for checkpoint in ("receipts", sys.argv[2]):
        detector = ocrlab.Detector.load(checkpoint, device=device)
        pages = {}
        for sample in index.samples:
            detections = [detection.polygon for detection in detector.detect(sample.image).detections]
            pages[sample.name] = ([*sample.polygons], detections, sample.ignored)
        scores.append(ocrlab.evaluation.score(pages))
    paired = ocrlab.evaluation.compare(*scores)
    print(paired)
    sys.exit(int(not paired.low > 0))
