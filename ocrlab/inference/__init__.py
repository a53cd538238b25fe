"""Find text with a trained detector: `Detector.load().detect("page.jpg")`, `.stream(pages)`, files, ONNX export.

Pages go through `train.pages`, the same path that validation takes, so that the two cannot differ.
"""

from __future__ import annotations

from ocrlab.inference.detector import Detector, newest_checkpoint, threads
from ocrlab.inference.prediction_files import FORMATS, Found, collect, overlay, predict_files
from ocrlab.inference.scoring import evaluate, score

__all__ = [
    "FORMATS",
    "Detector",
    "Found",
    "collect",
    "evaluate",
    "newest_checkpoint",
    "overlay",
    "predict_files",
    "score",
    "threads",
]
