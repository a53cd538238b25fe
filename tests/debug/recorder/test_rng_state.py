"""Random states as bytes: taken without drawing, put back exactly, also between the two Gaussians of NumPy."""

# ruff: noqa: NPY002  # the global generator is what is tested
import random
import threading

import numpy as np
import torch

from ocrlab.debug.recorder import rng_state


def draw():
    return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.randn(3).tolist()


def test_what_was_taken_is_put_back():
    states = rng_state.take()
    first = draw()
    assert rng_state.take() != states
    rng_state.restore(states)
    assert draw() == first
    rng_state.restore(states)
    assert rng_state.take() == states


def test_the_second_gaussian_of_numpy_counts():
    np.random.seed(0)
    np.random.randn()
    waiting = rng_state.take()
    second = np.random.randn()
    assert rng_state.take()["numpy"] != waiting["numpy"]
    rng_state.restore(waiting)
    assert np.random.randn() == second


def test_recorded_states_are_the_true_states():
    """A whole turn of the Twister brings the position back; a seed sets the first word alike each time."""
    for change in (
        lambda: [random.getrandbits(32) for _ in range(624)],
        lambda: np.random.bytes(4 * 624),
        lambda: (random.seed(7), np.random.seed(7)),
        lambda: (random.seed(8), np.random.seed(8)),
        lambda: random.gauss(0, 1),
        lambda: random.gauss(0, 1),
    ):
        change()
        states = rng_state.take()
        _, internal, gauss = random.getstate()
        assert states["python"] == rng_state.PYTHON.pack(*internal, gauss is not None, gauss or 0.0)
        assert states["numpy"][: 4 * 624] == np.random.get_state()[1].tobytes()
        assert rng_state.NUMPY.unpack_from(states["numpy"], 4 * 624)[0] == np.random.get_state()[2]


def test_a_state_read_while_other_threads_draw_is_consistent():
    """Each is read under its generator's lock. A torn one, words of one turn beside those of the next, never was."""
    over = threading.Event()

    def draws():
        while not over.is_set():
            torch.rand(600)
            np.random.rand(200)
            random.random()

    taken = []
    threads = [threading.Thread(target=draws) for _ in range(2)]
    torch.manual_seed(3)
    np.random.seed(3)
    for thread in threads:
        thread.start()
    for _ in range(400):
        taken.append(rng_state.take())
    over.set()
    for thread in threads:
        thread.join()
    torch.manual_seed(3)
    np.random.seed(3)
    whole = 4 * 624  # bytes of words, with which both states begin
    turns: dict[str, dict[bytes, bytes]] = {"torch": {}, "numpy": {}}
    while any(taken[-1][name][:64] not in true_states for name, true_states in turns.items()):
        torch.rand(624)  # a turn of the Twister
        np.random.bytes(whole)
        for name, true_states in turns.items():
            state = rng_state.take(cuda=False)[name]
            true_states[state[:64]] = state[:whole]
    changes = 0
    for states in taken:
        for name, true_states in turns.items():
            if states[name][:64] in true_states:
                changes += 1
                assert states[name][:whole] == true_states[states[name][:64]]
    assert changes > 400
