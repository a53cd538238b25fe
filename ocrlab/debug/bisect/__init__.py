"""Which setting, pair of settings or sample makes a program fail, found by running it again."""
