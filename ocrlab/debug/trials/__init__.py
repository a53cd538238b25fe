"""One watched run of a program, for replay, bisect and memory fit."""
