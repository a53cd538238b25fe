"""Laws that every correct training step obeys, tested by experiment on the user's own model, batch and loss."""
