"""The states of all random generators as bytes: taken in some microseconds, put back exactly.

Taking them draws nothing. CUDA's are read only where CUDA is in use and its context lives.

A state is 624 words, which a draw leaves as they are until the last of them is used up, and the rest: the position and
a second Gaussian. Asking Python, NumPy and torch for it converts each word: 50 us for the three while caches are cold.
Reading the position and some words where they lie tells whether there is anything new to ask for. C reads all of it
where it lies (`marks.c`).
"""

from __future__ import annotations

import _random
import contextlib
import ctypes
import importlib
import random
import struct
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ocrlab.debug.flight_record.ring_format import State, States

FORM = 2639508299  # of the sources in C that these lines fit: `python hatch_build.py` says it
quick: Any = None
with contextlib.suppress(ImportError):  # it was installed without a compiler
    quick = importlib.import_module("ocrlab.debug.recorder.quick")
if getattr(quick, "FORM", None) != FORM:  # nothing, or built from other sources
    quick = None

WORDS = 2496  # bytes of the words of a Mersenne Twister
GAUSS = struct.Struct("<Bd")
SECOND = struct.Struct("<i4xd")  # whether a Gaussian of NumPy waits, and that, as they lie in memory
PYTHON = struct.Struct("<625IBd")  # Mersenne Twister and its position, whether a second Gaussian waits, that
NUMPY = struct.Struct("<IBd")  # behind the words: position, whether a second Gaussian waits, that
# What torch gives as its state: seed, words left in this turn, seeded, next word; the words, each in eight bytes; a
# second Gaussian of float64 and whether it waits, one of float32 and the same (at::CPUGeneratorImplStateLegacy).
LEGACY = struct.Struct("<Qiii4x624Q8xd8xi4xfB3x")
HEAD = struct.Struct("<QiB3xI")
POD = struct.Struct("<QiB3xI624I4xfB3xdB")  # and as it lies in memory (at::mt19937_data_pod, then two optionals)
GAUSSIANS = struct.Struct("<fB3xdB")  # these
DENSE = struct.Struct("<624IQiBIfBdB")  # and as we keep it: the words, then the rest
KINDS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
VERSION = 3  # of random.getstate() since Python 3.2
NAMES = ("python", "numpy", "torch")


def take(*, cuda: bool = True) -> dict[str, bytes]:
    """Return the states of Python's, NumPy's and torch's generators; of CUDA's too where that is in use."""
    return whole(parts(cuda=cuda))


def whole(states: States) -> dict[str, bytes]:
    """Return states in one piece each, torch's in the form that we keep."""
    still, moving = states
    found = _joined(still)
    if "torch" in found:
        found["torch"] = dense(found["torch"] + moving)
    return found


def _joined(states: Mapping[str, State]) -> dict[str, bytes]:
    return {name: state if isinstance(state, bytes) else b"".join(state) for name, state in states.items()}


def parts(cuda: bool = True) -> States:
    """Return what `take` does in parts, what a draw of torch moves by itself; the same ones where nothing was drawn."""
    with_cuda = cuda and torch.cuda.is_initialized()
    if MARKS is not None and not with_cuda and (usual := MARKS.states()) is not None:
        return usual  # type: ignore[no-any-return]
    seen = _seen
    if _RAND._bit_generator is not seen.numpy:
        _see_numpy()
    python, numpy, words, head, gaussians = seen.views
    marks = python.raw, numpy.raw, words.raw
    moving = head.raw + gaussians.raw
    if marks != seen.marks or seen.waiting:
        _renew(marks)
        seen.states = seen.states[0], moving
    elif moving != seen.states[1]:
        seen.states = seen.states[0], moving
    if with_cuda:
        all_cuda = {f"cuda{i}": s.numpy().tobytes() for i, s in enumerate(torch.cuda.get_rng_state_all())}
        return {**all_cuda, **seen.states[0]}, moving  # torch's last: what moves is put behind it
    if MARKS is not None and all(hasattr(view, "_length_") for view in seen.views):
        python, numpy, *torchs = [(ctypes.addressof(view), len(view)) for view in seen.views]
        regions = python, numpy, torchs[0], (ctypes.addressof(seen.second), len(seen.second)), *torchs[1:]
        words = tuple(0 if full is None else ctypes.addressof(full) for full in seen.full)
        if len(seen.second) or not seen.waiting:
            twister: Any = random._inst  # type: ignore[attr-defined]
            MARKS.keep(regions, words, _RAND, seen.numpy, twister, twister.gauss_next, seen.states)
    return seen.states


def put(given: Mapping[str, State]) -> None:
    """Put the generators back to what `take` returned or a record holds; what it does not hold stays as it is."""
    _seen.marks = ()
    if MARKS is not None:
        MARKS.drop()
    given = _joined(given)
    if "python" in given:
        *internal, has_gauss, gauss = PYTHON.unpack(given["python"])
        random.setstate((VERSION, tuple(internal), gauss if has_gauss else None))
    if "numpy" in given:
        keys = np.frombuffer(given["numpy"], np.uint32, 624)
        position, has, cached = NUMPY.unpack_from(given["numpy"], keys.nbytes)
        np.random.set_state(("MT19937", keys, position, has, cached))  # noqa: NPY002
    if "torch" in given:
        torch.set_rng_state(_tensor(given["torch"]))
    if any(name.startswith("cuda") for name in given) and torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            if f"cuda{index}" in given:
                torch.cuda.set_rng_state(_tensor(given[f"cuda{index}"]), index)


MARKS: Any = quick.Marks() if quick is not None else None  # tells in C that nothing has moved
_RAND: Any = np.random.mtrand._rand  # type: ignore[attr-defined]  # what np.random's functions draw from
MARK = 32  # bytes of a view: the position and some words; with the same ones, only in 1 of 2^160 cases another turn


class _Seen:
    """Where the generators of this process lie, and where they were when they were looked at last."""

    numpy: Any = None  # the bit generator; somebody may put another one in its place
    views: list[Any]  # position and some words of Python's, of NumPy's; of torch's some words, its beginning and end
    full: list[Any]  # the words of each; None where this release has them elsewhere
    second: Any  # NumPy's second Gaussian, and before it whether it waits; empty where this release has them elsewhere
    marks: tuple[Any, ...] = ()
    states: States = ({}, b"")
    waiting: bool = False  # a second Gaussian of NumPy or Python, which is drawn without moving anything


def _renew(marks: tuple[Any, ...]) -> None:
    """Ask the generators that moved, or may have, for their states."""
    old = _seen.marks or (None, None, None)
    states = dict(_seen.states[0])
    waiting = False
    if marks[0] != old[0] or _seen.waiting:
        states["python"], waiting = _python(marks[0], old[0])
    if marks[1] != old[1] or _seen.waiting:
        state, second = _numpy(marks[1], old[1])
        states.pop("numpy", None) if state is None else states.update(numpy=state)
        waiting = waiting or second
    host = states.pop("torch", None)
    states["torch"] = host if host is not None and marks[2] == old[2] else _torch()  # the last one
    _seen.marks, _seen.states, _seen.waiting = marks, (states, b""), waiting


def _words(name: str, same: bool, view: Any) -> bytes:
    """Return the words of a generator: the object of last time where they are the same."""
    old = _seen.states[0].get(name)
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


def _torch() -> State:
    """Return the words of torch's generator of the host, or its state where what moves is not known by itself."""
    return torch.default_generator.get_state().numpy().tobytes() if _seen.full[2] is None else (_seen.full[2].raw, b"")


def _see_numpy() -> None:
    """Note NumPy's global generator, of which only a Mersenne Twister has a state that can be kept."""
    _seen.numpy, _seen.marks = _RAND._bit_generator, ()
    if type(_seen.numpy) is np.random.MT19937:
        address = int(_seen.numpy.ctypes.state_address)  # the words, then the position
        _seen.views[1], _seen.full[1] = _view(address + WORDS + 4 - MARK, MARK), _view(address, WORDS)
    else:
        _seen.views[1] = NOTHING


def _see_second() -> None:
    """Look for the second Gaussian of NumPy's generator, in one of our own; this release may have it elsewhere."""
    mine: Any = np.random.RandomState(20201)
    size = type(mine).__basicsize__
    mine.standard_normal()
    waiting = ctypes.string_at(id(mine), size)
    at = waiting.find(struct.pack("<d", mine.get_state()[-1])) - 8
    mine.standard_normal()
    drawn = ctypes.string_at(id(mine), size)
    if at >= 0 and [SECOND.unpack_from(memory, at)[0] for memory in (waiting, drawn)] == [1, 0]:
        _seen.second = _view(id(_RAND) + at, SECOND.size)


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
        state = ctypes.string_at(_address(mine) + offset, POD.size)
        end = HEAD.size + WORDS
        held = state[HEAD.size : end] + state[:MARK] + state[-MARK:]
        if _offset(mine) != offset or legacy(dense(held)) != _given(mine):
            return
    address = _address(torch.default_generator) + offset
    _seen.views[2:] = [_view(address + at, MARK) for at in (HEAD.size, 0, POD.size - MARK)]
    _seen.full[2] = _view(address + HEAD.size, WORDS)


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


def dense(state: bytes) -> bytes:
    """Return torch's state in the form that we keep, also if it is words, beginning and end as they lie in memory."""
    if len(state) != WORDS + 2 * MARK:
        return state
    words, head = state[:WORDS], HEAD.unpack_from(state, WORDS)
    single, has_single, double, has_double = GAUSSIANS.unpack_from(state, len(state) - GAUSSIANS.size)
    gaussians = (single if has_single else 0.0, has_single, double if has_double else 0.0, has_double)
    return DENSE.pack(*struct.unpack("<624I", words), *head, *gaussians)


def legacy(state: bytes) -> bytes:
    """Return a dense state of torch's generator as torch takes it."""
    *words, seed, left, seeded, following, single, has_single, double, has_double = DENSE.unpack(state)
    return LEGACY.pack(seed, left, seeded, following, *words, double, has_double, single, has_single)


_seen = _Seen()
NOTHING = _view(0, 0)
_seen.views, _seen.full = [_Unknown(), _Unknown(), _Unknown(), NOTHING, NOTHING], [None] * 3
_seen.second = NOTHING
_see_python()
_see_second()
_see_torch()


def _tensor(state: bytes) -> torch.Tensor:
    state = dense(state)
    whole = legacy(state) if len(state) == DENSE.size else state
    return torch.frombuffer(bytearray(whole), dtype=torch.uint8)
