"""A probability map into scored polygons, in the pixels of the original image.

`regions` is the way in; `quads` and `polygons` turn outlines into shapes, `scores` reads the map. Nothing here knows
torch, and nothing is compiled: OpenCV walks over the pixels, NumPy over the shapes.
"""

from __future__ import annotations

from ocrlab.postprocess.regions import Regions, decode

__all__ = ["Regions", "decode"]
