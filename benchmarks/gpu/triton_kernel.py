"""A Triton kernel that writes to a given address, which may be outside of its tensor."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def increment(x, shift, count: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add one to `count` numbers, `shift` numbers after the first."""
    at = x + shift.to(tl.int64) + tl.arange(0, count)
    tl.store(at, tl.load(at) + 1.0)
