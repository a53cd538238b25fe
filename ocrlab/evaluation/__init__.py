"""From probability maps to scored polygons, and from polygons to figures.

Public: `decode(maps)`, `score(pages)`, `compare(a, b)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ocrlab.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ocrlab.evaluation.metrics.page_scores import score
    from ocrlab.evaluation.metrics.paired_comparison import compare_scores as compare
    from ocrlab.evaluation.postprocess.decode import decode

__all__ = ["compare", "decode", "score"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "compare": "ocrlab.evaluation.metrics.paired_comparison:compare_scores",
        "decode": "ocrlab.evaluation.postprocess.decode",
        "score": "ocrlab.evaluation.metrics.page_scores",
    },
)
