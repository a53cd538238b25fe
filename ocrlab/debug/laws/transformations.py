"""Law 8: activation checkpointing and torch.compile change no gradient, and the same parameters get one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch.utils import checkpoint

from ocrlab.debug.laws.experiment import Experiment, NotTestable, distance
from ocrlab.debug.laws.law import Extras
from ocrlab.debug.laws.result import Result, broken, holds
from ocrlab.debug.laws.tensor_checks import listing

GENERATORS = ("_checkpoint_without_reentrant_generator", "_checkpoint_without_reentrant_generator_impl")


class _Direct:
    """Stands in for torch's checkpointing, for the time of one pass: the function is called as it is."""

    count = 0

    @classmethod
    def apply(cls, function: Any, _preserve: Any, *args: Any) -> Any:
        """Call the function."""
        cls.count += 1
        return function(*args)

    @classmethod
    def generator(cls, *_args: Any, **_named: Any) -> Iterator[None]:
        """Return what torch's checkpoint without reentry walks through around the call."""
        cls.count += 1
        yield


@contextlib.contextmanager
def without_checkpoints() -> Iterator[type[_Direct]]:
    """Switch activation checkpointing off inside of the block, in this process."""
    _Direct.count = 0
    names = {"CheckpointFunction": _Direct} | dict.fromkeys(GENERATORS, _Direct.generator)
    with contextlib.ExitStack() as stack:
        for name, value in names.items():
            if hasattr(checkpoint, name):
                stack.enter_context(mock.patch.object(checkpoint, name, value))
        yield _Direct


def _random_states() -> list[Any]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())]


def _redrawn(step: Experiment) -> Result | None:
    """Look whether the backward pass draws random numbers, and whether its gradients depend on them."""
    loss, states = step.loss, list[Any]()

    def run(seed: int | None) -> dict[str, Any]:
        def watched(model: Any, batch: Any) -> Any:
            total = loss(model, batch)
            if seed is not None:
                torch.default_generator.manual_seed(seed)
                torch.cuda.manual_seed_all(seed) if torch.cuda.is_initialized() else None
            states.append(_random_states())
            return total

        step.loss = watched
        try:
            return step.run(training=True, gradients=True).gradients
        finally:
            step.loss = loss

    first = run(None)
    if all(map(torch.equal, states[0], _random_states())) or any(p._backward_hooks for p in step.named.values()):
        return None  # nothing is drawn, or a hook adds noise to gradients
    others = [run(seed) for seed in (1, 2)]
    if distance(*others) <= max(step.rounding("gradients"), 1e-4):
        return None
    return broken(
        "transformations.random",
        "the backward pass",
        "it draws random numbers that the forward pass has not drawn, and the gradients depend on them"
        f" ({distance(first, others[0]):.2g} of their size): where parts are recomputed with another dropout mask,"
        " the gradient does not belong to the loss",
        "the same random state in both passes",
        "Use torch.utils.checkpoint.checkpoint(..., use_reentrant=False), which restores it, or save"
        " torch.get_rng_state() in forward and set it before recomputing",
        "a hand-written activation checkpoint (autograd.Function) that does not restore the random state",
        "preserve_rng_state=False",
    )


def test(step: Experiment, _extras: Extras) -> Iterator[Result]:
    """Compare the gradients with and without activation checkpointing."""
    redrawn = _redrawn(step)
    if redrawn is not None:
        yield redrawn
        return
    with_it = step.run(training=True, gradients=True)
    with without_checkpoints() as direct:
        without = step.run(training=True, gradients=True)
    if not direct.count:
        raise NotTestable("the step uses no activation checkpointing")
    lost = [name for name in without.gradients if name not in with_it.gradients]
    if lost:
        reentrant = "all of whose tensor inputs are without requires_grad"
        yield broken(
            "transformations.checkpoint",
            listing(step.model, lost),
            f"{len(lost)} parameters get a gradient without activation checkpointing, and none with it",
            "the same gradients with and without it",
            "Pass use_reentrant=False to torch.utils.checkpoint.checkpoint, or call"
            " embeddings.requires_grad_(True) (enable_input_require_grads in transformers)",
            f"reentrant checkpointing of layers {reentrant} (frozen embeddings): nothing inside is trained",
            "checkpointing inside of no_grad",
        )
        return
    apart = distance(with_it.gradients, without.gradients)
    if apart > max(step.rounding("gradients"), 1e-4):
        yield broken(
            "transformations.checkpoint",
            "the checkpointed layers",
            f"gradients with activation checkpointing differ from those without by {apart:.2g} of their size",
            "the same gradients",
            "Set preserve_rng_state=True, and look for state that the checkpointed layers write",
            "random numbers that recomputation draws anew (preserve_rng_state=False)",
            "layers that change a state",
        )
        return
    yield holds(f"activation checkpointing ({direct.count} segments) changes no gradient")
