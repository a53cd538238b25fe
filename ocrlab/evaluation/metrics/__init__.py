"""How good detections are, as plain functions over polygons: NumPy and shapely only, never torch."""
