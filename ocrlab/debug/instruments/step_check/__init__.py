"""One training step, checked: what is wrong with it although nothing raises."""
