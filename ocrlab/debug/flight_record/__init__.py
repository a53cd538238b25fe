"""The flight record on disk: the ring of the last steps, and what stands beside it; standard library only."""
