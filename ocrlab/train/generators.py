"""The states of all random generators as bytes: taken in some ten microseconds, put back exactly.

Taking them draws nothing. CUDA's are read only where CUDA is in use and its context lives.
"""

from __future__ import annotations

import ctypes
import random
import struct

import numpy as np
import torch

PYTHON = struct.Struct("<625IBd")  # Mersenne Twister and its position, whether a second Gaussian waits, that
NUMPY = struct.Struct("<IBd")  # behind 624 words: position, whether a second Gaussian waits, that
VERSION = 3  # of random.getstate() since Python 3.2


def take(*, cuda: bool = True) -> dict[str, bytes]:
    """Return the states of Python's, NumPy's and torch's generators; of CUDA's too where that is in use."""
    _, internal, gauss = random.getstate()
    states = {"python": PYTHON.pack(*internal, gauss is not None, gauss or 0.0)}
    numpy = _numpy()
    if numpy:
        states["numpy"] = numpy
    states["torch"] = torch.get_rng_state().numpy().tobytes()
    if cuda and torch.cuda.is_available() and torch.cuda.is_initialized():
        for index, state in enumerate(torch.cuda.get_rng_state_all()):
            states[f"cuda{index}"] = state.numpy().tobytes()
    return states


def put(states: dict[str, bytes]) -> None:
    """Put the generators back to what `take` returned; what it does not hold stays as it is."""
    if "python" in states:
        *internal, has_gauss, gauss = PYTHON.unpack(states["python"])
        random.setstate((VERSION, tuple(internal), gauss if has_gauss else None))
    if "numpy" in states:
        keys = np.frombuffer(states["numpy"], np.uint32, 624)
        position, has, cached = NUMPY.unpack_from(states["numpy"], keys.nbytes)
        np.random.set_state(("MT19937", keys, position, has, cached))  # noqa: NPY002
    if "torch" in states:
        torch.set_rng_state(_tensor(states["torch"]))
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            if f"cuda{index}" in states:
                torch.cuda.set_rng_state(_tensor(states[f"cuda{index}"]), index)


_last: tuple[int, bytes, bytes] = (0, b"", b"")  # address and words of NumPy's generator, what they were packed to


def _numpy() -> bytes:
    """Return the state of NumPy's global generator; empty where somebody put another kind in its place.

    `get_state` converts 624 words one by one, 40 us. Where the words are the same as last time and no second Gaussian
    was waiting then, nothing was drawn meanwhile.
    """
    global _last
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]  # not in the stubs, documented since 1.24
    if type(generator).__name__ != "MT19937":
        return b""
    address = int(generator.ctypes.state_address)
    words = ctypes.string_at(address, 4 * 625)  # the key, then the position
    old_address, old_words, packed = _last
    if address == old_address and words == old_words and not packed[2500]:
        return packed
    _, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002  # it is what others draw from
    packed = np.asarray(keys, np.uint32).tobytes() + NUMPY.pack(position, has_gauss, cached)
    _last = (address, words, packed)
    return packed


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
