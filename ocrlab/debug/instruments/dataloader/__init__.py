"""Whether training waits for its data, and for which sample."""
