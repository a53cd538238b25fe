"""`ocrlab doctor`: the ladder of ten steps; every check in a child of its own, so that it always reports."""
