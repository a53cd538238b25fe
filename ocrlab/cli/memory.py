"""`ocrlab memory`: what a training needs, what fits, what uses the memory now, and why it ran out."""

from __future__ import annotations

WORDS = {
    "fit": "find the largest batch that fits, by short trainings in children",
    "estimate": "say what a training will need, before it is started",
    "watch": "show what uses the memory now, of GPUs and of the host",
    "why": "say why a run was out of memory",
}
EXAMPLES = """
  ocrlab memory fit crop=640                              the largest batch for this machine, measured
  ocrlab memory fit encoder=resnet50 --limit 8            ... with 8 GB
  ocrlab memory estimate batch_size=16                    part by part, in seconds
  ocrlab memory watch                                     who uses what, now
  ocrlab memory why runs/20250101-120000-receipts         what took the memory, and what to set instead

`ocrlab memory WORD --help` says more; each WORD takes --json.
"""
