"""The states of all random generators as bytes: taken in some microseconds, put back exactly.

Taking them draws nothing. CUDA's are read only where CUDA is in use and its context lives.

A state is 624 words, which a draw leaves as they are until the last of them is used up, and the rest: the position and
a second Gaussian. Asking Python, NumPy and torch for it converts each word: 50 us for the three while caches are cold.
Reading the position and some words where they lie tells whether there is anything new to ask for.
"""

from __future__ import annotations

import _random
import ctypes
import random
import struct
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

WORDS = 2496  # bytes of the words of a Mersenne Twister
GAUSS = struct.Struct("<Bd")
PYTHON = struct.Struct("<625IBd")  # Mersenne Twister and its position, whether a second Gaussian waits, that
NUMPY = struct.Struct("<IBd")  # behind the words: position, whether a second Gaussian waits, that
# What torch gives as its state: seed, words left in this turn, seeded, next word; the words, each in eight bytes; a
# second Gaussian of float64 and whether it waits, one of float32 and the same (at::CPUGeneratorImplStateLegacy).
LEGACY = struct.Struct("<Qiii4x624Q8xd8xi4xfB3x")
HEAD = struct.Struct("<QiB3xI")
POD = struct.Struct("<QiB3xI624I4xfB3xdB")  # and as it lies in memory (at::mt19937_data_pod, then two optionals)
DENSE = struct.Struct("<624IQiBIfBdB")  # and as we keep it: the words, then the rest
KINDS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
VERSION = 3  # of random.getstate() since Python 3.2
NAMES = ("python", "numpy", "torch")

State = bytes | tuple[bytes, bytes]  # the words, the same object for as long as they are the same, and the rest


def take(*, cuda: bool = True) -> dict[str, bytes]:
    """Return the states of Python's, NumPy's and torch's generators; of CUDA's too where that is in use."""
    return {name: whole(state) for name, state in parts(cuda=cuda).items()}


def whole(state: State) -> bytes:
    """Return a state in one piece."""
    return state if isinstance(state, bytes) else b"".join(state)


def parts(*, cuda: bool = True) -> dict[str, State]:
    """Return what `take` does, not joined; where nothing was drawn the same dictionary again, not to be changed."""
    if _RAND._bit_generator is not _seen.numpy:
        _see_numpy()
    python, numpy, host, gaussians = _seen.views
    marks = [python.raw, numpy.raw, host.raw, gaussians.raw]
    if marks != _seen.marks or _seen.waiting:
        _renew(marks)
    states = _seen.states
    if cuda and torch.cuda.is_initialized():
        states = dict(states)
        for index, state in enumerate(torch.cuda.get_rng_state_all()):
            states[f"cuda{index}"] = state.numpy().tobytes()
    return states


def put(given: Mapping[str, State]) -> None:
    """Put the generators back to what `take` or `parts` returned; what it does not hold stays as it is."""
    _seen.marks = []
    states = {name: whole(state) for name, state in given.items()}
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


_RAND: Any = np.random.mtrand._rand  # type: ignore[attr-defined]  # what np.random's functions draw from
MARK = 32  # bytes of a view: the position and some words; with the same ones, only in 1 of 2^160 cases another turn


class _Seen:
    """Where the generators of this process lie, and where they were when they were looked at last."""

    numpy: Any = None  # the bit generator; somebody may put another one in its place
    views: list[Any]  # position and some words of Python's, of NumPy's, of torch's, and the Gaussians of that
    full: list[Any]  # the words of each, torch's among them; None where this release has them elsewhere
    marks: list[Any]
    states: dict[str, State]
    waiting: bool = False  # a second Gaussian of NumPy or Python, which is drawn without moving anything


def _renew(marks: list[Any]) -> None:
    """Ask the generators that moved, or may have, for their states."""
    old = _seen.marks or [None] * len(marks)
    states = dict(_seen.states)
    waiting = False
    if marks[0] != old[0] or _seen.waiting:
        states["python"], waiting = _python(marks[0], old[0])
    if marks[1] != old[1] or _seen.waiting:
        state, second = _numpy(marks[1], old[1])
        states.pop("numpy", None) if state is None else states.update(numpy=state)
        waiting = waiting or second
    if marks[2] != old[2] or marks[3] != old[3]:
        states["torch"] = _torch(marks[2], old[2], marks[3])
    _seen.marks, _seen.states, _seen.waiting = marks, states, waiting


def _words(name: str, same: bool, view: Any) -> bytes:
    """Return the words of a generator: the object of last time where they are the same."""
    old = _seen.states.get(name)
    return old[0] if same and isinstance(old, tuple) else view.raw


def _python(mark: Any, old: Any) -> tuple[State, bool]:
    """Return the state of Python's generator, and whether a second Gaussian waits in it."""
    if _seen.full[0] is None:
        _, internal, gauss = random.getstate()
        return PYTHON.pack(*internal, gauss is not None, gauss or 0.0), gauss is not None
    gauss = random._inst.gauss_next  # type: ignore[attr-defined]
    words = _words("python", old is not None and mark[4:] == old[4:], _seen.full[0])
    return (words, mark[:4] + GAUSS.pack(gauss is not None, gauss or 0.0)), gauss is not None


def _numpy(mark: Any, old: Any) -> tuple[State | None, bool]:
    """Return the same of NumPy's; None where somebody put another kind in its place."""
    if type(_seen.numpy) is not np.random.MT19937:
        return None, False
    _, _, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002  # it is what others draw from
    words = _words("numpy", old is not None and mark[:-4] == old[:-4], _seen.full[1])
    return (words, NUMPY.pack(position, has_gauss, cached)), bool(has_gauss)


def _torch(mark: Any, old: Any, gaussians: Any) -> State:
    """Return the state of torch's generator of the host."""
    if _seen.full[2] is None:
        return torch.default_generator.get_state().numpy().tobytes()
    words = _words("torch", old is not None and mark[20:] == old[20:], _seen.full[2])
    single = gaussians[:5] if gaussians[4] else bytes(5)
    double = gaussians[8:] if gaussians[16] else bytes(9)
    return words, b"".join((mark[:13], mark[16:20], single, double))


def _see_numpy() -> None:
    """Note NumPy's global generator, of which only a Mersenne Twister has a state that can be kept."""
    _seen.numpy, _seen.marks = _RAND._bit_generator, []
    if type(_seen.numpy) is np.random.MT19937:
        address = int(_seen.numpy.ctypes.state_address)  # the words, then the position
        _seen.views[1], _seen.full[1] = _view(address + WORDS + 4 - MARK, MARK), _view(address, WORDS)
    else:
        _seen.views[1] = _Constant


class _Constant:
    raw = b""


class _Unknown:
    """Stands for a view of what this release has elsewhere: it may have moved each time."""

    @property
    def raw(self) -> Any:
        return object()


def _view(address: int, size: int) -> Any:
    """Return bytes of memory that are read anew each time `raw` is asked for, without a call of a foreign function."""
    return (ctypes.c_char * size).from_address(address)


def _see_python() -> None:
    """Look for position and words of Python's generator; this Python may have them elsewhere."""
    generator = getattr(random, "_inst", None)
    if sys.implementation.name != "cpython" or type(generator) is not random.Random:
        return
    if _random.Random.__basicsize__ < object.__basicsize__ + 4 + WORDS:
        return
    address = id(generator) + object.__basicsize__
    key = random.getstate()[1]
    if ctypes.string_at(address, 4 + WORDS) == struct.pack("<I624I", key[-1], *key[:-1]):
        _seen.views[0], _seen.full[0] = _view(address, MARK), _view(address + 4, WORDS)


def _see_torch() -> None:
    """Look for the state of torch's generator; this release may have it in another form.

    The form is looked for in a generator of our own, with and without a second Gaussian.
    """
    mine = torch.Generator()
    offset = _offset(mine.manual_seed(20201))
    if offset is None or _offset(torch.default_generator) is None:
        return
    for draws, kind in ((5, torch.float32), (700, torch.float64), (1, torch.float64), (2, torch.float32)):
        torch.randn(draws, generator=mine, dtype=kind)
        state = POD.unpack(ctypes.string_at(_address(mine) + offset, POD.size))
        head, words, (single, has_single, double, has_double) = state[:4], state[4:628], state[628:]
        gaussians = (single if has_single else 0.0, has_single, double if has_double else 0.0, has_double)
        if _offset(mine) != offset or legacy(DENSE.pack(*words, *head, *gaussians)) != _given(mine):
            return
    address = _address(torch.default_generator) + offset
    _seen.views[2:] = [_view(address, 40), _view(address + 24 + WORDS, POD.size - 24 - WORDS)]
    _seen.full[2] = _view(address + 20, WORDS)


def _given(generator: torch.Generator) -> bytes:
    return generator.get_state().numpy().tobytes()


def _address(generator: torch.Generator) -> int:
    return int(getattr(generator, "_cdata", 0))


def _offset(generator: torch.Generator) -> int | None:
    """Return at which byte of a generator its state lies, None where it is not found near the beginning."""
    state, address = _given(generator), _address(generator)
    if len(state) != LEGACY.size or not address:
        return None
    seed, left, seeded, following, *words = LEGACY.unpack(state)[: 4 + 624]
    memory = ctypes.string_at(address, 256)
    offset = memory.find(struct.pack("<4I", *words[:4])) - HEAD.size  # what pads the fields may be anything
    known = offset >= 0 and HEAD.unpack_from(memory, offset) == (seed, left, seeded, following)
    return offset if known else None


def legacy(state: bytes) -> bytes:
    """Return a dense state of torch's generator as torch takes it."""
    *words, seed, left, seeded, following, single, has_single, double, has_double = DENSE.unpack(state)
    return LEGACY.pack(seed, left, seeded, following, *words, double, has_double, single, has_single)


_seen = _Seen()
_seen.views, _seen.full, _seen.marks, _seen.states = [_Unknown()] * 4, [None] * 3, [], {}
_see_python()
_see_torch()


def _tensor(state: bytes) -> torch.Tensor:
    whole = legacy(state) if len(state) == DENSE.size else state
    return torch.frombuffer(bytearray(whole), dtype=torch.uint8)
