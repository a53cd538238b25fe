"""`ocrlab samples`: make pages, look at them, find what is wrong with them, write them in another format."""

from __future__ import annotations

WORDS = {
    "make": "write synthetic receipts with exact polygons",
    "show": "draw annotated pages on one contact sheet",
    "check": "find boxes and pages that are probably wrong",
    "convert": "convert annotated pages to another format, in a new folder",
}
EXAMPLES = """
  ocrlab samples make receipts                            48 training pages and 16 validation pages
  ocrlab samples show receipts --split val --out sheet.png
  ocrlab samples check receipts                           boxes and pages that are probably wrong
  ocrlab samples convert receipts receipts-coco --to coco

`ocrlab samples COMMAND --help` describes one of them; each takes --json.
"""
