"""Laws of a whole training: accumulation weighs each label alike, batches are whole, copies move, sets are disjoint.

Nothing here waits for a device: what lies on one is not looked at.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.data.distributed import DistributedSampler

from ocrlab.debug.instruments.tensor_tree import dotted_tensors
from ocrlab.debug.laws.data import batch_size_broken, copied_generator, overlap
from ocrlab.debug.laws.live_objects import CHECKED, schedulers_of
from ocrlab.debug.laws.resume import lost_state
from ocrlab.debug.laws.schedule import ends_with_the_micro_batches
from ocrlab.debug.laws.state_guard import optimized_parameters
from ocrlab.debug.laws.tensor_checks import is_readable
from ocrlab.debug.recorder.figure_transfer import arrives_later
from ocrlab.run_folder.fail_safe import guard

VALUES = 64  # of a sample, evenly spread, that identify it
ROWS = 20_000  # samples of the first pass, and of validation, that are compared
LARGE = 20_000_000  # parameters of a copy, from which on it is not compared
NODES = 200  # of a loss's graph that are looked at
UNEQUAL = 1.5  # times the labels of another micro-batch of the same step
AWAY = -0.2  # cosine below which a copy moves away from its model
TURNS, MUCH = 3, 10  # periods of a schedule, and times that it is too long
MEASURED, HARDLY = 1 << 16, 0.3  # values of a weight that is measured; the share from which on nothing is averaged
SAME = 0.01  # difference of two shares; a decay that begins small and grows takes less each time
ENOUGH = 64  # losses whose gradient is looked at
STEPS = 20  # after which a copy that is meant to move has moved
MOVING = ("target", "ema", "momentum", "average", "slow", "shadow")  # names of copies that follow the model
TEACHER = ("teacher",)  # an average where the program has a name of one, else fixed
INTENT = re.compile(r"(^|_)ema(_|$)|update_(teacher|target|average)|mean_teacher")
FIXED = ("ref", "frozen", "initial", "base", "old", *TEACHER, "pretrained")  # names of copies that are to stand still
WORDS = re.compile(r"[a-z]+")
READY = 0.5  # of the largest singular value, that spectral_norm estimates at least after some passes


class LiveLaws:
    """What is looked at while a training runs, and said at its end; an error of its own ends it."""

    failed = False

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[Any]) -> None:
        self.models, self.first_pass, self.trained = [*models], True, False
        self.train_rows: list[int] = []  # hashes
        self.valid_rows: list[list[int]] = []  # of each call in eval mode
        self.room = ROWS  # for further hashes
        self.shapes: list[Any] = []
        self.pushes: list[float] = []  # the gradients of reported losses: 1, or what they were divided by later
        self.weights: list[tuple[Any, float, float]] = []  # of micro-batches: step and classes, labels, weight of each
        self.start: list[str] = []
        self.optimizers: list[Optimizer] = []
        self.copies = [pair for model in self.models for pair in (*_copies(model), *_outer_copies(model))]
        self.begun = {id(part): _snapshot(part) for pair in self.copies for part in (pair[1], pair[3])}
        self._begin(optimizers)
        self.handles = [model.register_forward_pre_hook(self.call, with_kwargs=True) for model in self.models]

    @guard
    def _begin(self, optimizers: Sequence[Any]) -> None:
        own = [o for o in optimizers if isinstance(o, Optimizer)]
        schedulers = schedulers_of(own)
        self.optimizers = own
        for optimizer in own:
            lost = lost_state(optimizer, [s for s in schedulers if s.optimizer is optimizer], beginning=True)
            self.start += [f"{lost.got}. {lost.do}"] if lost else []

    def followers(self) -> set[int]:
        """Return the ids of the parameters of copies, which assignment may move."""
        return {id(p) for _, part, _, _ in self.copies for p in part.parameters()}

    def close(self) -> None:
        """Remove every hook."""
        while self.handles:
            self.handles.pop().remove()

    def begin(self, pass_number: int, looking: bool, batch: Any) -> None:
        """Note that a batch came; of one that is looked at the shapes are stored."""
        self.first_pass = pass_number <= 0
        if looking and len(self.shapes) < 4:
            self.shapes.append([torch.empty(t.shape, dtype=t.dtype, device="meta") for _, t in dotted_tensors(batch)])

    def call(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Note the samples of a call: in train mode in the first pass, in eval mode without gradients always."""
        if (self.first_pass or not module.training) and not torch.compiler.is_compiling():
            self._note_call(module, args, kwargs)

    @guard
    def _note_call(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if module.training:
            self.trained = True
        elif torch.is_grad_enabled():
            return
        elif not self.trained and not self.start:
            self.start += _unready(module)
        if self.room <= 0:
            return
        first = args[0] if args else None  # looked for only where the first argument is another thing
        if not _has_rows(first):
            first = next((t for _, t in dotted_tensors((args, kwargs)) if _has_rows(t)), None)
        if first is None or arrives_later(first):
            return
        rows = row_hashes(first)
        self.room -= len(rows)
        if module.training:
            self.train_rows += rows
        elif rows:
            self.valid_rows.append(rows)

    @guard
    def loss(self, loss: Any, step: int) -> None:
        """Watch with which weight each label of a micro-batch enters its gradient."""
        if not isinstance(loss, Tensor) or arrives_later(loss) or loss.grad_fn is None:
            return
        if loss.numel() == 1 and len(self.pushes) < ENOUGH:
            loss.register_hook(self._pushed)
        waiting: list[Any] = [loss.grad_fn]
        visited: set[Any] = set()
        while waiting and len(visited) < NODES:
            node = waiting.pop()
            if node is None or node in visited:
                continue
            visited.add(node)
            if type(node).__name__.startswith("NllLoss"):
                self._hook(node, step)
                return
            waiting += [before for before, _ in node.next_functions]

    @guard
    def _pushed(self, gradient: Tensor) -> None:
        self.pushes.append(float(gradient))

    def _hook(self, node: Any, step: int) -> None:
        """Read now what a loss has saved: a hook that held its node would keep the graph for ever."""
        target, mean, each = node._saved_target, node._saved_reduction == 1, node._saved_reduction == 0
        labels = float((target != node._saved_ignore_index).sum())
        divisor = float(node._saved_total_weight) if mean else 1.0
        key = (step, node._saved_self.shape[1])

        def weigh(gradients: Any) -> None:
            gradient = gradients[0].abs()
            weight = gradient[gradient != 0].mean() if each else gradient / divisor
            if labels and float(weight) > 0:
                self.weights.append((key, float((gradient != 0).sum()) if each else labels, float(weight)))

        node.register_prehook(lambda gradients: self._weigh(weigh, gradients))

    @guard
    def _weigh(self, weigh: Any, gradients: Any) -> None:
        weigh(gradients)

    def sentences(self, loader: Any, steps: int, passes: int, batches: int, losses: Sequence[float]) -> Iterator[str]:
        """Yield a sentence for each law that the training broke."""
        yield from self.start
        for shapes in self.shapes[:1]:
            broken = batch_size_broken(loader, shapes)
            if broken and all(batch_size_broken(loader, other) for other in self.shapes):
                yield f"{broken.got}. {broken.do}"
        sampler = getattr(loader, "sampler", None)
        if isinstance(sampler, DistributedSampler) and sampler.shuffle and sampler.epoch == 0 and passes >= 3:
            yield (
                f"each of {passes} walks over the data had the same order: set_epoch was never called, and the sampler"
                " shuffles by the number of the epoch. Call loader.sampler.set_epoch(epoch) before each one"
            )
        yield from self._accumulation()
        yield from self._undivided(steps, batches, losses)
        yield from (result.sentence for result in copied_generator(loader))
        for scheduler in schedulers_of(self.optimizers):
            yield from _wrong_period(scheduler, steps)
            yield from filter(None, [ends_with_the_micro_batches(scheduler, steps, batches) if steps >= STEPS else ""])
        yield from self._still(steps)
        train_rows = set(self.train_rows)
        calls = [(rows, sum(row in train_rows for row in rows)) for rows in self.valid_rows]
        # a batch of nothing but training samples is a deliberate evaluation of the training set
        mixed = [row for rows, met in calls if met < len(rows) for row in rows]
        if mixed and (text := overlap(self.train_rows, dict.fromkeys(mixed))):
            yield f"{text}: validation does not measure new samples. Split before a source is repeated or augmented"

    def _accumulation(self) -> Iterator[str]:
        by_step: dict[Any, list[tuple[float, float]]] = {}
        for step, labels, weight in self.weights:
            by_step.setdefault(step, []).append((labels, weight))
        for micros in by_step.values():
            (fewest, heavy), (most, light) = min(micros), max(micros)
            share = heavy * fewest / (light * most)
            if most >= UNEQUAL * fewest and 0.8 < share < 1.25:
                yield (
                    f"gradients of {len(micros)} micro-batches or more are accumulated, each with a mean over its"
                    f" own labels: one with {fewest:g} tokens or labels counts as much as one with {most:g}, so that a"
                    f" label weighs {heavy / light:.3g} times another (a mean of means). Sum the loss of each"
                    " micro-batch, and divide by the labels of all micro-batches of the step"
                )
                return

    def _undivided(self, steps: int, batches: int, losses: Sequence[float]) -> Iterator[str]:
        """Report accumulated losses that are as large as the one that check_step saw; Adam does not mind a factor."""
        mean = next((CHECKED[model] for model in self.models if model in CHECKED), 0.0)
        count = round(batches / max(steps, 1))
        plain = all(type(o).__name__ == "SGD" for o in self.optimizers)
        whole = bool(self.pushes) and all(push == 1.0 for push in self.pushes)  # what is divided later pushes less
        if not plain or count < 2 or steps < STEPS or not whole or mean <= 0 or not losses:
            return
        if 0.75 < losses[0] / mean < 1.33:
            yield (
                f"the losses of {count} micro-batches are accumulated and not divided by their number: each is a whole"
                f" mean ({losses[0]:.3g}; check_step had {mean:.3g}), so that an update is the sum of {count} mean"
                f" gradients, {count} times as large as that of one batch with the same samples. Divide each loss by"
                f" {count} before backward(), or divide the learning rate if the sum is intended"
            )

    def _still(self, steps: int) -> Iterator[str]:
        for name, part, other_name, other in self.copies if steps >= STEPS else ():
            still = all(_same(old, p) for old, p in zip(self.begun[id(part)], part.parameters(), strict=True))
            moved = not all(_same(old, p) for old, p in zip(self.begun[id(other)], other.parameters(), strict=True))
            named = [_holds(name, words) for words in (MOVING, FIXED)]
            wanted = named[0] or (not named[1] and any(p.requires_grad for p in part.parameters()))
            wanted |= _holds(name, TEACHER) and any(INTENT.search(n.lower()) for n in vars(sys.modules["__main__"]))
            owned = optimized_parameters(self.optimizers)
            followed = not still and not any(id(p) in owned for p in part.parameters())
            if moved and followed and (cosine := self._cosine(part, other)) < AWAY:
                yield (
                    f"{name} follows {other_name} the wrong way: in {steps} steps it moved away from it (cosine"
                    f" {cosine:.2f} between both ways). An average is decay * average + (1 - decay) * weights"
                )
            if followed and (norms := _stale_norms(part, other)):
                yield (
                    f"{name} follows the weights of {other_name}, and its BatchNorm statistics ({norms}) are still"
                    f" those of the start: {name} is wrong in eval mode. Copy the buffers too"
                    " (AveragedModel(..., use_buffers=True), or update_bn at the end)"
                )
            if still and moved and wanted:
                yield (
                    f"{name} has the layers of {other_name} and was never updated in {steps} steps, while"
                    f" {other_name} moved: a target network or average without an update. Copy or average the weights"
                    f" of {other_name} into it (is it loaded with its own weights?)"
                )

    def _cosine(self, part: nn.Module, other: nn.Module) -> float:
        """Return the cosine between the ways of two modules since the start."""
        ways = []
        for module in (part, other):
            pairs = zip(self.begun[id(module)], module.parameters(), strict=True)
            ways.append(torch.cat([(p.detach().float() - old.float()).flatten() for old, p in pairs]))
        return float(functional.cosine_similarity(ways[0], ways[1], dim=0))


class FollowedWeights:
    """How much of the model an average among the extras takes in each step."""

    def __init__(self, models: Sequence[nn.Module], extra: Mapping[str, Any]) -> None:
        self.pairs = [
            (name, part, model)
            for name, part in extra.items()
            for model in models
            if isinstance(part, nn.Module)
            and any(word.startswith(MOVING[1:]) for word in WORDS.findall(f"{name} {type(part).__name__}".lower()))
            and _alike(part, model)
        ]
        self.before: list[tuple[Tensor, Tensor]] = []
        self.shares: dict[str, list[float]] = {}

    @guard
    def stepped(self, steps: int) -> None:
        """Note average and weights after a step of the optimizer, before the average moves."""
        self.before = [
            (_largest(part).detach().clone(), _largest(model).detach().clone())
            for _, part, model in (self.pairs if steps >= STEPS else ())
        ]

    @guard
    def begin(self) -> None:
        """Note at the next batch how far the average has moved towards the weights."""
        before, self.before = self.before, []
        for (name, part, _), (old, weights) in zip(self.pairs, before, strict=False):
            now = _largest(part).detach()
            if torch.equal(now, weights):
                continue  # a copy, or the sync of a lookahead
            way, moved = (weights - old).flatten(), (now - old).flatten()
            length = float(way @ way)
            if length > 0 and bool(moved.any()):
                self.shares.setdefault(name, []).append(float(way @ moved) / length)

    def sentence(self) -> str:
        """Return that an average holds hardly more than the last step, in all late looks; else ''."""
        for name, shares in self.shares.items():
            if len(shares) >= 2 and min(shares) >= HARDLY and max(shares) - min(shares) < SAME:
                return (
                    f"the average {name} takes {shares[-1]:.0%} of the weights in each step (a decay of"
                    f" {1 - shares[-1]:.2g}): it is the model of the last steps, and nothing is averaged. A moving"
                    " average is decay * average + (1 - decay) * weights, with a decay of 0.99 or more; look whether"
                    " decay and 1 - decay are mixed up"
                )
        return ""


def _largest(module: nn.Module) -> Tensor:
    return max(module.parameters(), key=lambda p: p.numel() if p.numel() <= MEASURED else 0)


def _stale_norms(part: nn.Module, other: nn.Module) -> str:
    """Return a BatchNorm layer of `part` that has seen no batch, while that of `other` has; '' for none."""
    for (name, own), source in zip(part.named_modules(), other.modules(), strict=False):
        if not isinstance(own, _BatchNorm) or not isinstance(source, _BatchNorm):
            continue
        mean, spread, count = own.running_mean, own.running_var, source.num_batches_tracked
        if mean is None or spread is None or count is None or not int(count):
            continue
        if not bool(mean.any()) and bool(spread.eq(1).all()):
            return name
    return ""


def _wrong_period(scheduler: Any, steps: int) -> Iterator[str]:
    """Report a schedule that was planned in epochs and stepped once a batch, or the other way round."""
    for owner in (scheduler, *getattr(scheduler, "_schedulers", ())):
        keywords = [getattr(f, "keywords", None) or {} for f in getattr(owner, "lr_lambdas", ())]
        planned = [getattr(owner, "T_max", 0), getattr(owner, "total_steps", 0) or 0]
        planned += [k.get("num_training_steps", 0) for k in keywords]
        length, count = max(planned), int(getattr(owner, "last_epoch", 0) or 0)
        name = type(owner).__name__
        text = f"{name} was made for {length} steps of its own and was stepped {count} times in {steps} updates"
        if length and steps >= STEPS and count > TURNS * length and getattr(owner, "T_max", 0):
            yield (
                f"{text}: the rate fell and rose {count // length} times. Is it made for epochs, and stepped once a"
                " batch? Step it once an epoch, or give it the number of all batches"
            )
        elif length and steps >= STEPS and 0 < count * MUCH <= length and steps >= MUCH * count:
            yield (
                f"{text}: the rate has seen hardly any of its schedule. Is it made for batches, and stepped once an"
                " epoch?"
            )


Copy = tuple[str, nn.Module, str, nn.Module]  # what may follow, and what it follows


def _copies(model: nn.Module) -> Iterator[Copy]:
    """Yield each part that begins with the weights of another part, with that one."""
    parts = [(n, m) for n, m in model.named_children() if any(p.ndim > 1 and not is_lazy(p) for p in m.parameters())]
    for index, (name, part) in enumerate(parts):
        for other_name, other in parts[:index]:
            if type(part) is type(other) and _alike(part, other) and all(map(torch.equal, *_values(part, other))):
                pair: Copy = (name, part, other_name, other)
                yield (*pair[2:], *pair[:2]) if _holds(other_name, (*MOVING, *TEACHER)) else pair
                break


def _outer_copies(model: nn.Module) -> Iterator[Copy]:
    """Yield the models of the main module with the shapes of this one, whose name says that they follow it."""
    for name, part in list(vars(sys.modules["__main__"]).items()):
        if isinstance(part, nn.Module) and _holds(name, (*MOVING, *TEACHER)) and _alike(part, model):
            yield name, part, "the model", model


def _values(*modules: nn.Module) -> list[list[Tensor]]:
    return [[*module.parameters()] for module in modules]


def _alike(part: nn.Module, other: nn.Module) -> bool:
    """Return whether two modules have weights of the same shapes, none in common, which can be compared at once."""
    ours, theirs = _values(part, other)
    if not ours or part is other or len(ours) != len(theirs) or sum(p.numel() for p in ours if not is_lazy(p)) > LARGE:
        return False
    pairs = zip(ours, theirs, strict=True)
    return all(
        type(a) is type(b) is nn.Parameter
        and a.shape == b.shape
        and a is not b
        and a.device == b.device
        and not arrives_later(a)
        for a, b in pairs
    )


def _holds(name: str, words: Sequence[str]) -> bool:
    return any(word in name.lower() for word in words)


def stands_still(name: str) -> bool:
    """Return whether a copy has a name of those that never change: a reference, a teacher without averaging."""
    follows = any(INTENT.search(other.lower()) for other in vars(sys.modules["__main__"]))
    return _holds(name, FIXED) and not _holds(name, MOVING) and not (_holds(name, TEACHER) and follows)


def _snapshot(part: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in part.parameters()]


def _same(first: Tensor, second: Tensor) -> bool:
    return bool(torch.equal(first, second.detach()))


def _has_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 1 and is_readable(value)


def row_hashes(tensor: Tensor) -> list[int]:
    """Return a hash of some values of each row of a tensor, which holds in this process."""
    tensor = tensor.detach()
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    some = tensor.numpy()[(slice(None), *_places(tensor.shape[1:]))]  # no copy of a batch in another memory format
    return [hash(row.tobytes()) for row in some] if some.shape[1] > 3 else []


@functools.lru_cache(8)
def _places(shape: torch.Size) -> tuple[Any, ...]:
    """Return the indices of values that are evenly spread over a row; an odd step does not stay in one column."""
    return np.unravel_index(np.arange(0, shape.numel(), shape.numel() // VALUES | 1), shape)


def _unready(model: nn.Module) -> Iterator[str]:
    """Yield that spectral_norm has no estimate yet, though the model is evaluated."""
    for name, module in model.named_modules():
        weight, u, v = (getattr(module, key, None) for key in ("weight_orig", "weight_u", "weight_v"))
        if not all(isinstance(t, Tensor) and not arrives_later(t) for t in (weight, u, v)):
            continue
        with torch.no_grad():
            matrix = weight.reshape(weight.shape[0], -1)  # type: ignore[union-attr]
            if matrix.shape[0] != len(u):  # type: ignore[arg-type]
                continue
            estimate = float(u @ matrix @ v)  # type: ignore[operator]
            exact = float(torch.linalg.matrix_norm(matrix.float(), 2)) if matrix.numel() < 1 << 22 else 0.0
        if abs(estimate) < READY * exact:
            yield (
                f"the model was evaluated in eval mode before any training forward, and the power iteration of"
                f" spectral_norm has not run ({name}: sigma {estimate:.3g}, the largest singular value is {exact:.3g}):"
                " this evaluation means nothing. Run some forward passes in train mode before it, or use"
                " torch.nn.utils.parametrizations.spectral_norm"
            )
            return
