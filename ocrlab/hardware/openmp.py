"""How long a waiting thread of OpenMP stays awake.

PyTorch's libgomp keeps it awake for milliseconds, with which a step gains a few percent at most on a free machine. As
soon as something else runs there, it holds the core that the thread it waits for would need, and a step takes several
times as long (`benchmarks/busy.py`). Source: GOMP_SPINCOUNT in the manual of GNU libgomp, which itself takes 1,000
turns where there are more threads than cores.
"""

from __future__ import annotations

from collections.abc import MutableMapping

TURNS = "1000"
SETTINGS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")  # with these somebody has chosen already


def sleep_soon(env: MutableMapping[str, str]) -> None:
    """Set in an environment that waiting threads sleep after 1,000 turns, unless it says something else already.

    It is read when libgomp is loaded: by a child, or by this process before it imports torch.
    """
    if not any(name in env for name in SETTINGS):
        env["GOMP_SPINCOUNT"] = TURNS
