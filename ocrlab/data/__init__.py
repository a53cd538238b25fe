"""Data sets: annotation formats, transforms, target maps, shards, synthetic receipts, and the audit of a folder.

Public: `load(folder, split)`, `convert(source, target, to)`, `audit_folder(folder)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ocrlab.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ocrlab.data.audit.audit_job import check as audit_folder
    from ocrlab.data.formats.convert import convert
    from ocrlab.data.formats.reader import load

__all__ = ["audit_folder", "convert", "load"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "audit_folder": "ocrlab.data.audit.audit_job:check",
        "convert": "ocrlab.data.formats.convert",
        "load": "ocrlab.data.formats.reader",
    },
)
