"""`ocrlab memory`: what a training needs, what fits, what uses the memory now, and why it ran out."""

from __future__ import annotations

WORDS = {
    "fit": "measure the largest batch that fits, by short trainings in child processes",
    "estimate": "predict the memory of a training, without running it",
    "watch": "show who uses GPU and host memory now",
    "why": "explain why a run ran out of memory",
}
EXAMPLES = """
  ocrlab memory why runs/20250101-120000-receipts         why it ran out, and what to set instead
  ocrlab memory fit crop=640                              the largest batch for this machine, measured
  ocrlab memory fit encoder=resnet50 --limit 8            the same within 8 GB
  ocrlab memory estimate batch_size=16                    part by part, in seconds
  ocrlab memory watch                                     who uses how much now

`ocrlab memory COMMAND --help` describes one of them; each takes --json.
"""
