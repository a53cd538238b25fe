"""A probability map into scored polygons, in the pixels of the original image.

`regions` is the way in; `outlines` finds what is text in a mask, `quads` and `polygons` turn outlines into shapes,
`scores` reads the map. `kernels` is compiled by numba when it is first needed; pyclipper moves polygons outwards.
Nothing here knows torch.
"""

from __future__ import annotations

from ocrlab.evaluation.postprocess.decode import Regions, decode

__all__ = ["Regions", "decode"]
