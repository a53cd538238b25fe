"""The states of all random generators as bytes: read through public functions, restored exactly.

Reading them draws nothing, and each is read under its generator's own lock: a thread that draws meanwhile comes before
or after. torch takes its lock itself and Python's generator is safe under the interpreter's; NumPy reads its state
without one, so that it is taken here. CUDA's are read only where CUDA is in use and its context lives.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

PYTHON = struct.Struct("<625IBd")  # Mersenne Twister and its position, whether a second Gaussian waits, that
NUMPY = struct.Struct("<IBd")  # after the words: position, whether a second Gaussian waits, that
# torch.get_rng_state() has 5056 bytes: seed and position, 624 words in eight bytes each, second Gaussians. The words
# are put first, as they are in the other two: a record names them, and holds the rest.
TORCH, FIRST, LAST = 5056, 24, 24 + 8 * 624
KINDS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
VERSION = 3  # of random.getstate() since Python 3.2
UNCHANGED_READS = 8  # reads of an unchanged state, after which it is read less often
EVERY = 32  # steps between two such reads
_newest: tuple[Any, bytes] = (None, b"")  # Python's state as it was last, and as bytes


def take(*, cuda: bool = True) -> dict[str, bytes]:
    """Return the states of Python's, NumPy's and torch's generators; of CUDA's devices too where that is in use.

    NumPy's is left out where its generator was replaced by one of another kind.
    """
    states = {name: state for name, read in READERS.items() if (state := read()) is not None}
    return states | _torch(cuda, every=True)


class StateReader:
    """Reads the states of this process in each step, the expensive ones only where they may have changed.

    torch gives its state in a microsecond, Python and NumPy convert each of their 624 words, for up to 60. Theirs are
    read while they move, else in every 32nd step and where the caller wants all: a training mostly draws from them
    in its workers. What is not read is left out; a replay, which has drawn the same, leaves it as it is.
    """

    def __init__(self) -> None:
        self.count = 0
        self.newest: dict[str, bytes | None] = {}
        self.still = {"python": 0, "numpy": 0}  # reads since it moved

    def take(self, *, cuda: bool, everything: bool) -> dict[str, bytes]:
        """Return the states that may have moved; with `everything` all, those of all devices among them."""
        self.count += 1
        whole = everything or self.count % EVERY == 0
        states: dict[str, bytes] = {}
        for name, read in READERS.items():
            if whole or self.still[name] < UNCHANGED_READS:
                state = read()
                self.still[name] = self.still[name] + 1 if state == self.newest.get(name) else 0
                self.newest[name] = state
                if state is not None:
                    states[name] = state
        return states | _torch(cuda, everything)


def _torch(cuda: bool, every: bool) -> dict[str, bytes]:
    """Return torch's state, and with `cuda` that of the current device, or of `every` one, where CUDA is in use."""
    state = torch.get_rng_state().numpy().tobytes()
    states = {"torch": state if len(state) != TORCH else state[FIRST:LAST] + state[:FIRST] + state[LAST:]}
    if cuda and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()) if every else (torch.cuda.current_device(),):
            states[f"cuda{device}"] = torch.cuda.get_rng_state(device).numpy().tobytes()
    return states


def _python() -> bytes:
    """Return the state of Python's generator; the same bytes again where nothing was drawn."""
    global _newest
    state = random.getstate()
    previous, packed = _newest
    if state != previous:
        _, internal, gauss = state
        packed = PYTHON.pack(*internal, gauss is not None, gauss or 0.0)
        _newest = state, packed
    return packed


def _numpy() -> bytes | None:
    """Return the state of the generator that np.random's functions draw from; None for one of another kind."""
    numpy_random: Any = np.random
    generator = numpy_random.get_bit_generator()
    if type(generator) is not np.random.MT19937:
        return None
    with generator.lock:
        _, keys, *rest = numpy_random.get_state()
    return bytes(keys.tobytes() + NUMPY.pack(*rest))


READERS: dict[str, Callable[[], bytes | None]] = {"python": _python, "numpy": _numpy}


def restore(states: Mapping[str, bytes]) -> None:
    """Restore the generators to what `take` returned or a record holds; the others stay as they are."""
    if "python" in states:
        *internal, has_gauss, gauss = PYTHON.unpack(states["python"])
        random.setstate((VERSION, tuple(internal), gauss if has_gauss else None))
    if "numpy" in states:
        keys = np.frombuffer(states["numpy"], np.uint32, 624)
        position, has, cached = NUMPY.unpack_from(states["numpy"], keys.nbytes)
        np.random.set_state(("MT19937", keys, position, has, cached))  # noqa: NPY002
    if "torch" in states:
        torch.set_rng_state(_tensor(states["torch"]))
    if any(name.startswith("cuda") for name in states) and torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            if f"cuda{index}" in states:
                torch.cuda.set_rng_state(_tensor(states[f"cuda{index}"]), index)


def _tensor(state: bytes) -> torch.Tensor:
    words = LAST - FIRST
    if len(state) == TORCH:
        state = state[words : words + FIRST] + state[:words] + state[words + FIRST :]
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
