"""What runs inside the child of a replay: the program again, from a snapshot or from its start."""
