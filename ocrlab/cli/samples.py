"""`ocrlab samples`: make pages, look at them, find what is wrong with them, write them in another format."""

from __future__ import annotations

WORDS = {
    "make": "write synthetic receipts, with exact polygons",
    "show": "look at annotated pages as one contact sheet",
    "check": "find boxes and pages that are probably wrong",
    "convert": "write annotated pages in another format, into a new folder",
}
EXAMPLES = """
  ocrlab samples make receipts                            48 pages to learn from, 16 to measure on
  ocrlab samples show receipts --split val --out sheet.png
  ocrlab samples check receipts                           boxes and pages that are probably wrong
  ocrlab samples convert receipts receipts-coco --to coco

`ocrlab samples WORD --help` says more; each WORD takes --json.
"""
