"""How high a heap grows that never gives memory back, as a training keeps it: asked of glibc's own malloc, in a child.

The child takes and frees pieces of the same sizes in the same order, and touches none of them. What makes holes that no
tensor of the same size can use again, and a heap far higher than what is in it, are the small objects that come with
tensors: they settle in the cuttings that posix_memalign leaves beside each tensor, and where they outlive their
neighbours, free pieces cannot join. A gradient's live as long as it; the nodes of a graph until the backward pass has
ended, while gradients come. So what is followed is storages and nodes, and one step is repeated: holes come and go.
"""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ocrlab.trace.memory_record import Block

CHILD = Path(__file__).with_name("estimate_malloc.py")
MALLOC = ("-4=0", "-1=2147483647", "-2=67108864")  # as train.machine.keep_freed_memory has it
CACHE = "glibc.malloc.tcache_count=0"  # of a training much else passes through it; here cuttings would stay in it
SECONDS = 60.0  # that the child may take
STEPS = 12  # optimiser steps in all that the heap is followed for
STORAGE, TENSOR, COUNTER = 96, 176, 24  # bytes of torch's StorageImpl, TensorImpl, and what counts versions
NODE = (544, 32, 16, 16, 16)  # bytes of a node of the graph, its edges and the sizes that it keeps
CONVOLUTION = (768, 64, 8, 16, 16, 16, 16)  # the same of a convolution
Life = tuple[int, int | None, tuple[int, ...]]  # born, died, the bytes of its pieces


@dataclass(slots=True)
class Node:
    """What one operator of the forward pass leaves in the graph, from its birth to the end of the backward pass."""

    born: int
    sizes: tuple[int, ...] = NODE
    died: int | None = None


def height(
    blocks: Sequence[Block],
    scratch: Sequence[tuple[int, int]] = (),
    nodes: Sequence[Node] = (),
    ends: Sequence[int] = (),
) -> int:
    """Return how high a heap grows, in bytes, for storages and nodes from birth to death; 0 where it cannot be asked.

    `scratch` are (event, bytes) that an operator takes inside itself and gives back; `ends` the events at which each
    optimiser step ended: the last but one is repeated, whose storages have all been seen to die.
    """
    lives: list[Life] = [(b.born, b.died, (STORAGE, -b.bytes, TENSOR, COUNTER)) for b in blocks]
    lives += [(n.born, n.died, n.sizes) for n in nodes]
    lives += [(event, event, (-size,)) for event, size in scratch if size]
    if len(ends) > 2:
        lives = list(_repeated(lives, ends[-3], ends[-2], STEPS - len(ends) + 1))
    events = [(born, 1, index) for index, (born, _, _) in enumerate(lives)]
    ended = ((died, born, index) for index, (born, died, _) in enumerate(lives) if died is not None)
    events += [(died, 0 if died > born else 2, index) for died, born, index in ended]
    events.sort()
    told, first = array("q"), [0]
    for _, _, sizes in lives:
        first.append(first[-1] + len(sizes))
    for _, what, index in events:
        for number, size in enumerate(lives[index][2]):
            told.extend((first[index] + number, size if what == 1 else 0))
    command = [sys.executable, "-I", "-S", str(CHILD), *MALLOC]
    env = {**os.environ, "GLIBC_TUNABLES": CACHE}
    try:
        done = subprocess.run(command, input=told.tobytes(), capture_output=True, timeout=SECONDS, check=True, env=env)
        return int(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return 0


def _repeated(lives: Sequence[Life], start: int, end: int, times: int) -> Iterator[Life]:
    """Yield all that was born before `end`, and what was born from `start` on so many times more, each time later."""
    for born, died, sizes in lives:
        if born >= end:
            continue
        yield born, died, sizes
        if born < start or died is None:
            continue
        for turn in range(1, times + 1):
            later = turn * (end - start)
            yield born + later, died + later, sizes
