"""Takes and frees memory as stdin says and tells how high its heap grew; touches none of it: no torch, no NumPy.

python -I -S estimate_malloc.py OPTION=VALUE ...    pairs of int64: (slot, size), (slot, -size) aligned, (slot, 0) freed
"""

from __future__ import annotations

import array
import ctypes
import sys

ALIGNED = 64  # bytes, of every tensor on the CPU
FIRST = 1 << 20  # bytes that are taken and given back to learn where the heap ends


def main(options: list[str]) -> None:
    """Print the bytes that the heap grew by; where memory ends, as far as it came."""
    told = array.array("q", sys.stdin.buffer.read())
    slots = [0] * (max(told[::2], default=0) + 1)
    libc = ctypes.CDLL("libc.so.6")
    for option in options:
        libc.mallopt(*map(int, option.split("=")))
    malloc, memalign, free = libc.malloc, libc.memalign, libc.free
    malloc.argtypes, malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    memalign.argtypes, memalign.restype = [ctypes.c_size_t, ctypes.c_size_t], ctypes.c_void_p
    free.argtypes, free.restype = [ctypes.c_void_p], None
    base = high = malloc(FIRST)
    free(base)
    for slot, size in zip(told[::2], told[1::2], strict=True):
        if not size:
            free(slots[slot])
            continue
        place = malloc(size) if size > 0 else memalign(ALIGNED, -size)
        if not place:
            break
        slots[slot] = place
        high = max(high, place + abs(size))
    print(high - base)


if __name__ == "__main__":
    main(sys.argv[1:])
