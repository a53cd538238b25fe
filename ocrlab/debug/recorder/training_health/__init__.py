"""What the recorder notices of a training that runs and does not learn."""
