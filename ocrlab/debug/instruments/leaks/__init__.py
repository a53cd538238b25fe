"""What keeps memory from step to step, with its source line."""
