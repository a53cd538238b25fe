"""One fact about the machine each, as a Reading or the reason why there is none; a probe never raises and never blocks."""
