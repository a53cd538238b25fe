"""A program with eight settings that fails when some of them stand as they were: what flight.py bisects.

`python benchmarks/flight_buggy.py NEEDED HOW RATE workers=8 amp=on ...`: with every setting of NEEDED (a,b) at its
first value it dies of a read at address 0, raises, or exits, RATE of the times.
"""

from __future__ import annotations

import ctypes
import random
import sys

BAD = {
    "workers": "8",
    "amp": "on",
    "compile": "on",
    "channels_last": "on",
    "batch": "64",
    "threads": "16",
    "cudnn": "on",
    "start": "fork",
}
GOOD = {
    "workers": "0",
    "amp": "off",
    "compile": "off",
    "channels_last": "off",
    "batch": "1",
    "threads": "1",
    "cudnn": "off",
    "start": "spawn",
}


def main() -> None:
    """Fail or do not."""
    needed, how, rate, *words = sys.argv[1:]
    settings = dict(word.split("=") for word in words)
    print("epoch 1, step 1", flush=True)
    if all(settings[name] == BAD[name] for name in needed.split(",")) and random.random() < float(rate):
        if how == "segfault":
            ctypes.CDLL(None).strlen(ctypes.c_void_p(0))
        if how == "exit":
            sys.exit(3)
        raise RuntimeError("line_filter: a run of length 0")
    print("done", flush=True)


if __name__ == "__main__":
    main()
