"""`ocrlab report`: what is handed on to others: an executed notebook as one HTML file, and a bug report of a run."""

from __future__ import annotations

WORDS = {
    "html": "write an executed notebook as one HTML file without scripts or network requests",
    "bug": "write a bug report of a run, an incident, a notebook or a log",
}
EXAMPLES = """
  ocrlab report bug runs/20260102-030405-receipts                what failed, why, and how to reproduce it
  ocrlab report bug train.log                                    the same from a log
  ocrlab report html reports/20260102-030405-03_train.ipynb      writes the .html beside it

`ocrlab report COMMAND --help` describes one of them; each takes --json. Secrets and names are replaced by rules, and
rules miss things: review the file before you share it.
"""
