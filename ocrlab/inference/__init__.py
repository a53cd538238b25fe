"""Find text with a trained detector. Pages take the same path here and in the validation of a training.

Public: `Detector.load().detect("page.jpg")` and `.stream(pages)`, `export_onnx(detector, path)`,
`hmean_upper_bound(folder)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ocrlab.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ocrlab.inference.detector import Detector
    from ocrlab.inference.onnx_export import to_onnx as export_onnx
    from ocrlab.inference.upper_bound import hmean_upper_bound

__all__ = ["Detector", "export_onnx", "hmean_upper_bound"]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Detector": "ocrlab.inference.detector",
        "export_onnx": "ocrlab.inference.onnx_export:to_onnx",
        "hmean_upper_bound": "ocrlab.inference.upper_bound",
    },
)
