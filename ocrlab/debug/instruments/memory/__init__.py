"""The peak of memory by module, and its estimate before a training."""
