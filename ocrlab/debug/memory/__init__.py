"""Why memory ran out, and the largest batch that fits."""
