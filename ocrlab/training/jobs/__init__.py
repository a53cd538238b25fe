"""Short trainings in a child, for estimates, memory fit, bisect and replay."""
