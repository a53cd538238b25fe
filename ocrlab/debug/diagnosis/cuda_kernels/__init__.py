"""For people who write CUDA kernels: launch limits, registers, memory transactions."""
