"""What each module computes: shapes, ranges, NaN, gradients, time."""
