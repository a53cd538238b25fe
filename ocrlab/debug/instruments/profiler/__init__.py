"""Operators of a step, and each line that waits for the device."""
