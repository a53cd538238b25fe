"""Facts about running processes: trees, threads, stacks, signals, the Linux kernel log."""
