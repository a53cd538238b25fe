"""Why a program stands still, read from its stacks."""
