"""A probability map into scored polygons, in the pixels of the original image.

`decode` is where to start; `contours` finds what is text in a mask, `quads` and `polygons` turn contours into shapes,
`box_scores` reads the map. `numba_kernels` is compiled when it is first needed; pyclipper moves polygons outwards.
Nothing here imports torch.
"""

from __future__ import annotations

from ocrlab.evaluation.postprocess.decode import Regions, decode

__all__ = ["Regions", "decode"]
