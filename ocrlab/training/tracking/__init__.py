"""Trackers (wandb, TensorBoard) in a process of their own."""
