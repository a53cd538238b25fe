"""The flight recorder inside the training process: what is written down of each step, and how it is put back."""
