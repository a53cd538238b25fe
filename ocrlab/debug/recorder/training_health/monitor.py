"""Does a training learn? A few of its steps are inspected, and findings are reported when it ends.

A look is taken at micro-batches 0 to 3 and at each power of two, so that it costs nothing in a long run; between looks
some numbers are put down, and counted many at a time: code and data that are asked for once in a step have left the
caches by the next one. Weights and batches are compared by the sum of their bits, gradients by their norm.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ocrlab.debug.instruments.step_check import static_rules, step_rules
from ocrlab.debug.instruments.step_check.findings import is_readable, stored_values
from ocrlab.debug.instruments.tensor_tree import dotted_tensors
from ocrlab.debug.recorder.training_health import pass_checks, rules
from ocrlab.debug.recorder.training_health.grad_scaler import GradScalerCheck
from ocrlab.debug.recorder.training_health.model_checks import ConstantBaseline, InputScaleCheck, OutputCollapseCheck
from ocrlab.debug.recorder.training_health.pass_checks import WeightResetCheck
from ocrlab.debug.recorder.training_health.rules import InspectedStep, TrainingStats
from ocrlab.run_folder.fail_safe import guard, report

WIDTHS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SAMPLED = 64  # values of a tensor by which the size of its change is measured
WATCHED = 1 << 16  # values of a gradient that may be held from one batch to the next
LAST = 8  # losses at the beginning and at the end that are compared
MANY = 256  # losses, or steps, that are counted at a time
CLOSELY, SOME = 64, 255  # so many first batches are compared with the one before, then two of so many
compiling = torch.compiler.is_dynamo_compiling


@dataclass
class TrainingMonitor:
    """What is noted of one training, until `stop`; an error of its own ends it, and is passed to `on_error`."""

    model: nn.Module
    optimizers: Sequence[Any] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    network: nn.Module | None = None  # what is called in place of the model
    on_error: Callable[[Exception], Any] = lambda _: None
    on: bool = True

    def __post_init__(self) -> None:
        self.stats = TrainingStats(players=len(self.optimizers))
        self.named = {name: p for name, p in self.model.named_parameters() if not is_lazy(p)}
        self.moving = any(isinstance(part, rules.MODES) for part in self.model.modules())
        self.looking = self.validating = False
        self.before: dict[str, tuple[int, Tensor]] = {}
        self.probes: dict[int, tuple[Any, list[tuple[bool, bool]]]] = {}  # by optimiser: a hook, what it saw
        whole = self.model if self.network is None else self.network
        self.models = [*whole] if isinstance(whole, nn.ModuleList) else [whole]  # members of a list are called
        self.averages = {n: total for n, part in self.extra.items() if (total := self._averaged(part)) is not None}
        self.handles: list[Any] = []
        self.call_handles: list[Any] = []  # of an inspected step
        self.answers, self.scales, self.baseline = (
            OutputCollapseCheck(),
            InputScaleCheck(self.models),
            ConstantBaseline(),
        )
        self.coverage, self.weight_reset = pass_checks.SamplerCoverageCheck(), WeightResetCheck()
        mine = (p for o in self.optimizers for group in o.param_groups for p in group["params"] if p.requires_grad)
        small = [p for p in mine if not is_lazy(p) and p.numel() <= WATCHED]
        self.watched = min(small, key=torch.numel, default=None)
        self.scaled = GradScalerCheck(max(small, key=torch.numel, default=None))
        self.begun = list(static_rules.check_untrained_part(self.model))  # BatchNorm that counts hides it later
        self.witness: dict[Any, Tensor | None] = {}  # by optimiser
        self.gradient: Tensor | None = None  # of what is watched, when the batch before came
        self.steps_then = self.batches_then = 0
        self.pass_number, self.due = -1, 0
        self.losses: list[float] = []  # that are still to be counted
        self.steps: list[tuple[bool, float | None, bool, bool]] = []  # so are these: rate, modes, gradients

    def stop(self) -> None:
        """Remove every hook and note nothing more; after a CUDA error nothing else may be called."""
        self.on = False
        self.close()

    def give_up(self, error: Exception) -> None:
        """Stop after an error in ocrlab's own code."""
        self.stop()
        self.on_error(error)
        report(error, "training checks disabled")

    def _averaged(self, part: Any) -> int | None:
        """Return the sum of what may be an average of the weights: a module, or what has a state of their shapes."""
        if isinstance(part, nn.Module):
            return sums(part.parameters())
        state = getattr(part, "state_dict", None)
        try:
            tensors = [t for _, t in dotted_tensors(state())] if callable(state) else []
        except Exception:  # of the user's making
            return None
        shapes = Counter(t.shape for t in tensors if t.is_floating_point())
        alike = (Counter(p.shape for p in module.parameters() if not is_lazy(p)) for module in self.models)
        return sums(tensors) if any(wanted and wanted <= shapes for wanted in alike) else None

    @guard
    def validate(self, on: bool) -> None:
        """Note that validation begins or ends."""
        if on == self.validating:
            return
        self.validating = on
        self.scales.looking = self.looking and not on
        while self.handles:
            self.handles.pop().remove()
        if on and self.moving:
            self.handles = [part.register_forward_pre_hook(self._entered) for part in self.models]

    def _entered(self, module: nn.Module, _inputs: Any) -> None:
        # Removed by a hook before it, it is still called for the call at hand.
        if self.validating and module.training and not torch.compiler.is_compiling():
            self.stats.validated_training += 1

    @guard
    def begin(self, micro: int, batch: Any, pass_number: int = 0) -> None:
        """Note that a batch of a walk over the data came; only asked from micro-batch `due` on, or in a new walk."""
        stats = self.stats
        if pass_number != self.pass_number and not capturing():
            self.pass_number = pass_number
            self.weight_reset.begin(stats.steps, lambda: sums(self.named.values()))
        if self.watched is not None:
            new, old = self.watched.grad, self.gradient
            if stats.batches == self.batches_then + 1:
                stats.followed += 1
                another = new is not old and new is not None and old is not None
                stats.thrown += another and self.steps_then == stats.steps
            self.gradient, self.steps_then, self.batches_then = new, stats.steps, stats.batches
        self._look_in(micro, batch)
        after = micro + 1
        if self.looking or after < CLOSELY or micro % SOME == 0:
            self.due = after
        else:
            self.due = min(1 << micro.bit_length(), after + -after % SOME)

    def _look_in(self, micro: int, batch: Any) -> None:
        """Begin or end a look at a step."""
        stats = self.stats
        if micro & (micro - 1) and micro != 3:  # neither a power of two nor one of the first four
            if self.looking:
                self.looking = self.scales.looking = False
                self.baseline.begin(())
                self._unhook_calls()
            return
        self.count()  # of steps that were not inspected
        self._unhook_calls()
        self.looking = not capturing()
        tensors = [(name, t.detach()) for name, t in dotted_tensors(batch) if is_readable(t)] if self.looking else []
        self.scales.looking = self.looking
        self.baseline.begin([t for _, t in tensors])
        if self.looking:
            hook = self._note_call
            self.call_handles = [model.register_forward_hook(hook, with_kwargs=True) for model in self.models]
            stats.looks += 1
            stats.contents.append(tuple(bits(t) for _, t in tensors))
            stats.see_batch(tensors)

    def _unhook_calls(self) -> None:
        while self.call_handles:
            self.call_handles.pop().remove()

    def _note_call(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or not module.training or self.validating or capturing():
            return
        self.answers.note((args, kwargs), output)
        if len(self.models) == 1:
            self.baseline.note(output)

    def loss(self, value: float) -> None:
        """Note a loss; losses are counted many at a time, or up to here where it is not finite."""
        if self.on:
            self.losses.append(value)
            if self.looking or len(self.losses) >= MANY or value - value != 0:
                self.count()

    @guard
    def scaling(self, loss: Any) -> None:
        """Look at what backward and the step do with the size of a loss."""
        if not capturing():
            self.scaled.loss(loss)

    @guard
    def count(self) -> None:
        """Count the losses and steps that were put down."""
        stats, losses, steps = self.stats, self.losses, self.steps
        self.losses, self.steps = [], []
        for value in losses:
            stats.losses += 1
            self.baseline.loss(value)
            stats.same = stats.same + 1 if value == stats.last else 0
            stats.last = value
            if not stats.lost and not math.isfinite(value):
                stats.lost = stats.batches
            if stats.losses <= LAST:
                stats.first_losses.append(value)
            stats.last_losses.append(value)
        for rated, rate, training, bare in steps:
            stats.unrated = 0 if rated else stats.unrated + 1
            if rate is not None:
                stats.rises += rate > stats.rate and bool(stats.rate)
                stats.peak, stats.rate = max(stats.peak, rate), rate
                stats.faint += 0 < rate < rules.FAINT * stats.peak
                stats.low += 0 < rate < rules.LOW * stats.peak
            if self.moving:
                stats.trained += training
                stats.evaled += not training and bool(stats.trained)
            stats.bare += bare

    @guard
    def stepping(self, optimizer: Any) -> None:
        """Note that an optimiser is about to step; with a closure the gradients are still to come."""
        if self.looking and not capturing():
            mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
            parameters = {name: p for name, p in self.named.items() if id(p) in mine and is_readable(p)}
            self.before = {name: (bits(p), sample(p)) for name, p in parameters.items()}
            self.scaled.stepping()

    @guard
    def stepped(self, optimizer: Any, micro: int) -> None:
        """Note that an optimiser has stepped: its gradients are still there."""
        stats = self.stats
        if compiling():
            return
        stats.steps += 1
        groups, models = optimizer.param_groups, self.models
        rate = groups[0].get("lr") if len(groups) == 1 else None
        if type(rate) is float and stats.players <= 1:
            rated = rate != 0
        else:  # of several players each has its own rate
            rates = [group.get("lr", 1) for group in groups]
            rated = any(isinstance(lr, Tensor) or lr for lr in rates)
            rate = max((lr for lr in rates if isinstance(lr, float)), default=0.0) if stats.players <= 1 else None
        training = self.moving and (models[0].training or any(model.training for model in models))
        witness = self.witness.get(optimizer)  # had a gradient last time
        if witness is None or witness.grad is None:
            witness = next((p for g in groups for p in g["params"] if p.grad is not None), None)
            self.witness[optimizer] = witness
        self.steps.append((rated, rate, training, witness is None))
        if len(self.steps) >= MANY:
            self.count()
        hook, arrivals = self.probes.pop(id(optimizer), (None, [])) if self.probes else (None, [])
        if hook is not None:
            hook.remove()
            is_stale = bool(arrivals) and all(old for old, _ in arrivals)
            stats.stale += is_stale
            stats.fresh += bool(arrivals) and not is_stale
            if any(came for _, came in arrivals) and not capturing():
                grads = [p.grad for group in groups for p in group["params"] if p.grad is not None]
                stats.zeroed += bool(grads) and not any(bool(stored_values(grad).count_nonzero()) for grad in grads)
        if self.looking and not capturing():
            if rated:
                self._look(optimizer)
            stats.weights[micro] = sums(self.named.values())
            self._probe(optimizer)
            self.before = {}

    def _look(self, optimizer: Any) -> None:
        """Note which weights this step moved, and which gradients it had."""
        mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
        step = InspectedStep({n for n, p in self.named.items() if p.requires_grad})
        step.owned = {n for n, p in self.named.items() if id(p) in mine}
        step.norms = gradient_norms(self.named)
        moved = size = 0.0
        for name, (old, values) in self.before.items():
            now = sample(self.named[name])
            moved, size = moved + float((now - values).square().sum()), size + float(values.square().sum())
            if bits(self.named[name]) != old:
                step.moved.add(name)
        step.change = math.sqrt(moved / size) if size else math.inf
        self.stats.inspected.append(step)
        self.scaled.stepped({name: norm for name, norm in step.norms.items() if name in step.owned})
        for finding in (*static_rules.check_modes(self.model), *static_rules.check_decay([optimizer])):
            if finding.rule != "mode.eval" or self.moving:
                self.stats.standing[finding] = self.stats.standing.get(finding, 0) + 1

    def _probe(self, optimizer: Any) -> None:
        """Watch, until the next step of this optimizer, whether its gradients were reset."""
        mine = (p for group in optimizer.param_groups for p in group["params"])
        p = next((p for p in mine if p.requires_grad and p.is_leaf and p.grad is not None), None)
        if p is None or id(optimizer) in self.probes:
            return
        arrivals: list[tuple[bool, bool]] = []  # whether old gradients were there, whether what came was not 0

        def arrives(gradient: Tensor) -> None:
            if not capturing():
                there = p.grad is not None and bool(stored_values(p.grad).count_nonzero())
                arrivals.append((there, bool(stored_values(gradient).count_nonzero())))

        self.probes[id(optimizer)] = (p.register_hook(arrives), arrivals)

    def close(self) -> None:
        """Remove every hook."""
        for handle in (*self.handles, *(hook for hook, _ in self.probes.values())):
            handle.remove()
        self._unhook_calls()
        self.scales.close()
        self.scaled.close()
        self.handles, self.probes = [], {}

    def sentences(self, loader: Any) -> list[str]:
        """Return the findings of a training that has ended, with the DataLoader of its data, None for another."""
        self.close()
        stats = self.stats
        samples = pass_checks.samples_in(loader)
        stats.larger = samples > (getattr(loader, "batch_size", 0) or 1)
        stats.generator = pass_checks.copied_generator(loader)
        stats.checks["coverage"] = self.coverage.sentence(samples)
        stats.workers = loader.num_workers if loader is not None else 0
        return rules.sentences(stats, self.model)

    @guard
    def end(self) -> None:
        """Look at what is there when a training ends."""
        self.count()
        stats, groups = self.stats, [group for o in self.optimizers for group in o.param_groups]
        owned = {id(p) for group in groups for p in group["params"]}
        stats.owned = {name for name, p in self.named.items() if id(p) in owned} if self.optimizers else None
        stats.left = gradient_norms(self.named)
        stats.averages += [name for name, old in self.averages.items() if self._averaged(self.extra[name]) == old]
        stats.checks |= {
            "answers": self.answers.sentence(),
            "scales": self.scales.sentence(),
            "weight reset": self.weight_reset.sentence(stats.weights),
            "constant baseline": self.baseline.sentence(len(stats.walks)),
            "grad scaler": self.scaled.sentence(),
        }
        stats.hidden = [*self.begun, *step_rules.check_unlisted_weights(self.model, self.optimizers)]
        stats.initial = max((float(group.get("initial_lr", 0)) for group in groups), default=0.0)


def gradient_norms(named: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the norm of each gradient that is there, by the name of its parameter."""
    gradients = {name: stored_values(p.grad) for name, p in named.items() if p.grad is not None}
    return {name: float(grad.detach().float().norm()) for name, grad in gradients.items() if is_readable(grad)}


def capturing() -> bool:
    """Tell whether a CUDA graph is being captured, or a graph traced: nothing may be read from a tensor then."""
    if torch.compiler.is_compiling():
        return True
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def sums(tensors: Any) -> int:
    """Return the sum of all bits of several tensors."""
    return sum(bits(t) for t in tensors if is_readable(t))


def bits(tensor: Tensor) -> int:
    """Return the sum of a tensor's values taken as whole numbers: another one for every single value that changes."""
    flat = flattened(tensor.detach())
    if flat.is_complex():
        flat = torch.view_as_real(flat)
    if flat.is_floating_point():
        flat = flat.view(WIDTHS[flat.element_size()])
    return int(flat.sum(dtype=torch.int64))


def sample(tensor: Tensor) -> Tensor:
    """Return some values of a tensor, evenly spread."""
    flat = flattened(tensor.detach())
    return flat[:: max(1, flat.numel() // SAMPLED)][:SAMPLED].float().clone()


def flattened(tensor: Tensor) -> Tensor:
    """Return a tensor in one dimension, without a copy where its memory is dense (channels_last too)."""
    if tensor.is_contiguous() or (tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)):
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.flatten()
