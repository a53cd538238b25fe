"""From probability maps to scored polygons, and from polygons to figures."""
