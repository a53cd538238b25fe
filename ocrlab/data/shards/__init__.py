"""Pages in tar shards: written, indexed, read at random."""
