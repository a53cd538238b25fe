"""Running any program under watch: its output as it was, its stacks when it hangs, its verdict when it dies."""
