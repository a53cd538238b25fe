"""Several ranks: launching them, stopping together, sharing one run folder."""
