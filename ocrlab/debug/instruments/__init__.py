"""Instruments inside the training process: what each module computes, waits for and keeps; nothing of training."""
