"""A bug report of a run that fills itself in."""
