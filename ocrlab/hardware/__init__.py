"""One fact about the machine each, a Reading or the reason why there is none; a probe never raises or blocks."""
