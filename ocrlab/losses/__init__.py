"""The DB loss."""
