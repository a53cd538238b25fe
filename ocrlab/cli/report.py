"""`ocrlab report`: what is handed on to others: an executed notebook as one HTML file, and a bug report of a run."""

from __future__ import annotations

WORDS = {
    "html": "write an executed notebook as one HTML file that needs no network and no script",
    "bug": "write a bug report of a run that fills itself in",
}
EXAMPLES = """
  ocrlab report html reports/20260102-030405-03_train.ipynb      beside it, as .html
  ocrlab report bug runs/20260102-030405-receipts                what failed, why, and how to see it again

`ocrlab report WORD --help` says more; each WORD takes --json.
"""
