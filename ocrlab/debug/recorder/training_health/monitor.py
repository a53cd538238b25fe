"""Does a training learn? A few of its steps are inspected, and findings are reported when it ends.

A look is taken at micro-batches 0 to 3 and at each power of two, so that it costs nothing in a long run; between looks
some numbers are put down, and counted many at a time: code and data that are asked for once in a step have left the
caches by the next one. Weights and batches are compared by the sum of their bits, gradients by their norm. Nothing
waits for a device: figures of what lies there are used when they have arrived, at the latest at the end.
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

from ocrlab.debug.instruments.tensor_tree import dotted_tensors
from ocrlab.debug.laws.coverage import decay, untrained_part
from ocrlab.debug.laws.live_objects import trained_elsewhere
from ocrlab.debug.laws.mode import wrong_modes
from ocrlab.debug.laws.observation import unlisted_weights
from ocrlab.debug.laws.result import Result
from ocrlab.debug.laws.tensor_checks import is_readable, stored_values
from ocrlab.debug.recorder.figure_transfer import FigureTransfer, arrives_later
from ocrlab.debug.recorder.training_health import pass_checks, rules
from ocrlab.debug.recorder.training_health.batch_contents import BatchContents
from ocrlab.debug.recorder.training_health.grad_scaler import GradScalerCheck
from ocrlab.debug.recorder.training_health.live_laws import FollowedWeights, LiveLaws, stands_still
from ocrlab.debug.recorder.training_health.model_checks import ConstantBaseline, InputScaleCheck, OutputCollapseCheck
from ocrlab.debug.recorder.training_health.pass_checks import WeightResetCheck
from ocrlab.debug.recorder.training_health.rules import InspectedStep, TrainingStats
from ocrlab.debug.recorder.training_health.tensor_figures import (
    any_nonzero,
    bit_sums,
    can_read_gradient,
    norm,
    sample,
    total,
)
from ocrlab.run_folder.fail_safe import guard, report

WATCHED = 1 << 16  # values of a gradient that may be held from one batch to the next
LAST = 8  # losses at the beginning and at the end that are compared
AT_END = 2.0  # seconds that the end of a training waits for figures of a device; a kernel may be endless
MANY = 256  # losses, or steps, that are counted at a time
CLOSELY, SOME = 64, 255  # so many first batches are compared with the one before, then two of so many
compiling = torch.compiler.is_dynamo_compiling


# A gradient that reaches a parameter: whether there was one, whether this one is other than 0, steps before it.
Arrival = tuple[list[Tensor], list[Tensor], tuple[int, int, int]]


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
        self.transfer = FigureTransfer()
        self.named = {name: p for name, p in self.model.named_parameters() if not is_lazy(p)}
        self.moving = any(isinstance(part, rules.MODES) for part in self.model.modules())
        self.looking = self.validating = False
        self.before: dict[str, tuple[Tensor, Tensor]] = {}
        self.probes: dict[int, tuple[Any, list[Arrival]]] = {}  # by optimizer: its hook, the gradients that arrived
        whole = self.model if self.network is None else self.network
        self.models = [*whole] if isinstance(whole, nn.ModuleList) else [whole]  # members of a list are called
        self.averages = {n: sums for n, part in self.extra.items() if (sums := self._averaged(part)) is not None}
        self.following = FollowedWeights(self.models, self.extra)
        self.handles: list[Any] = []
        self.call_handles: list[Any] = []  # of an inspected step
        self.answers, self.scales, self.baseline = (
            OutputCollapseCheck(self.transfer),
            InputScaleCheck(self.models, self.transfer),
            ConstantBaseline(self.transfer),
        )
        for check in (self.answers, self.scales, self.baseline):
            check.on_program_error = self.give_up
        self.contents = BatchContents(self.stats, self.transfer)
        self.laws = LiveLaws(self.models, self.optimizers)
        self.coverage, self.weight_reset = pass_checks.SamplerCoverageCheck(), WeightResetCheck()
        mine = (p for o in self.optimizers for group in o.param_groups for p in group["params"] if p.requires_grad)
        small = [p for p in mine if not is_lazy(p) and p.numel() <= WATCHED]
        self.watched = min(small, key=torch.numel, default=None)
        self.scaled = GradScalerCheck(max(small, key=torch.numel, default=None), self.transfer)
        self.begun = self._untrained_parts()
        self.witness: dict[Any, Tensor | None] = {}  # by optimizer
        self.gradient: Tensor | None = None  # of what is watched, when the batch before came
        self.steps_then = self.batches_then = 0
        self.pass_number, self.due = -1, 0
        self.losses: list[tuple[float, int]] = []  # that are still to be counted, with their micro-batches
        self.steps: list[tuple[bool, float | None, bool, bool]] = []  # so are these: rate, modes, gradients

    def _untrained_parts(self) -> list[Result]:
        """Return frozen parts that no checkpoint has reached; asked before the training, where a wait is harmless."""
        try:
            return list(untrained_part(self.model))  # BatchNorm that counts hides it later
        except RuntimeError as error:
            if "synchronizing" not in str(error):  # torch.cuda.set_sync_debug_mode
                raise
            return []

    def stop(self) -> None:
        """Remove every hook and note nothing more; after a CUDA error nothing else may be called."""
        self.on = self.looking = False
        self.close()

    def abandon(self) -> list[Any]:
        """Abandon figures under way, and return what must not be freed in a dead CUDA context."""
        return self.transfer.abandon()

    @guard
    def arrive(self) -> None:
        """Use the figures that have arrived from a device."""
        if not capturing():
            self.transfer.read()

    def give_up(self, error: Exception) -> None:
        """Stop after an error in ocrlab's own code."""
        self.stop()
        self.on_error(error)
        report(error, "training checks disabled")

    def _averaged(self, part: Any) -> list[Tensor] | None:
        """Return the sums of what may be an average of the weights: a module, or what has a state of their shapes."""
        if isinstance(part, nn.Module):
            return bit_sums(list(part.parameters()))
        state = getattr(part, "state_dict", None)
        try:
            tensors = [t for _, t in dotted_tensors(state())] if callable(state) else []
        except Exception:  # of the user's making
            return None
        shapes = Counter(t.shape for t in tensors if t.is_floating_point())
        alike = (Counter(p.shape for p in module.parameters() if not is_lazy(p)) for module in self.models)
        return bit_sums(tensors) if any(wanted and wanted <= shapes for wanted in alike) else None

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
            if self.weight_reset.wants(stats.steps):
                self.transfer.send(self._weight_sums().values(), lambda sums: self.weight_reset.note(total(sums)))
        if self.watched is not None:
            new, old = self.watched.grad, self.gradient
            if stats.batches == self.batches_then + 1:
                stats.followed += 1
                another = new is not old and new is not None and old is not None
                stats.thrown += another and self.steps_then == stats.steps
            self.gradient, self.steps_then, self.batches_then = new, stats.steps, stats.batches
        self._look_in(micro, batch)
        self.laws.begin(pass_number, self.looking, batch)
        after = micro + 1
        if self.looking or after < CLOSELY or micro % SOME == 0:
            self.due = after
        else:
            self.due = min(1 << micro.bit_length(), after + -after % SOME)

    def _look_in(self, micro: int, batch: Any) -> None:
        """Begin or end a look at a step."""
        self.following.begin()
        stats = self.stats
        if micro & (micro - 1) and micro != 3:  # neither a power of two nor one of the first four
            if self.looking:
                self.looking = self.scales.looking = False
                self.baseline.begin((), micro)
                self._unhook_calls()
            return
        self.count()  # of steps that were not inspected
        self._unhook_calls()
        self.looking = not capturing()
        tensors = [(name, t.detach()) for name, t in dotted_tensors(batch) if is_readable(t)] if self.looking else []
        self.scales.looking = self.looking
        self.baseline.begin([t for _, t in tensors], micro)
        if self.looking:
            hook = self._note_call
            self.call_handles = [model.register_forward_hook(hook, with_kwargs=True) for model in self.models]
            stats.looks += 1
            self.contents.look(tensors)

    def _unhook_calls(self) -> None:
        while self.call_handles:
            self.call_handles.pop().remove()

    def _note_call(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or not module.training or self.validating or capturing():
            return
        self.answers.note((args, kwargs), output)
        if len(self.models) == 1:
            self.baseline.note(output)

    def loss(self, value: float, micro: int, batch: Any = None) -> None:
        """Note a loss and, where it is not finite, what its batch holds; losses are counted many at a time."""
        if self.on:
            self.losses.append((value, micro))
            if value - value != 0 and not self.stats.lost:
                self._search(batch)
            if self.looking or self.baseline.waiting or len(self.losses) >= MANY or value - value != 0:
                self.count()

    @guard
    def _search(self, batch: Any) -> None:
        if not capturing():
            self.contents.search([(name, t.detach()) for name, t in dotted_tensors(batch) if is_readable(t)])

    @guard
    def scaling(self, loss: Any) -> None:
        """Look at what backward and the step do with the size of a loss."""
        if not capturing():
            self.scaled.loss(loss)
            self.laws.loss(loss, self.stats.steps)

    @guard
    def count(self) -> None:
        """Count the losses and steps that were put down."""
        stats, losses, steps = self.stats, self.losses, self.steps
        self.losses, self.steps = [], []
        for value, micro in losses:
            stats.losses += 1
            self.baseline.loss(value, micro)
            stats.same = stats.same + 1 if value == stats.last else 0
            if not stats.lost and not math.isfinite(value):
                stats.lost, stats.before_lost = min(stats.batches, micro + 1), stats.last  # a device's arrives later
            stats.last = value
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
        """Note that an optimizer is about to step; with a closure the gradients are still to come."""
        if self.looking and not capturing():
            mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
            parameters = {name: p for name, p in self.named.items() if id(p) in mine and is_readable(p)}
            sums = bit_sums(list(parameters.values()))
            self.before = {n: (old, sample(parameters[n])) for n, old in zip(parameters, sums, strict=True)}
            self.scaled.stepping()

    @guard
    def stepped(self, optimizer: Any, micro: int) -> None:
        """Note that an optimizer has stepped: its gradients are still there."""
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
            self._count_arrivals(optimizer, arrivals)
        if self.looking and not capturing():
            self.following.stepped(stats.steps)
            sums = self._weight_sums()
            if rated:
                self._look(optimizer, sums)
            weights = stats.weights
            self.transfer.send(sums.values(), lambda figures: weights.update({micro: total(figures)}))
            self._probe(optimizer)
            self.before = {}

    def _weight_sums(self) -> dict[str, Tensor]:
        """Return the sum of the bits of each parameter."""
        readable = {name: p for name, p in self.named.items() if is_readable(p)}
        return dict(zip(readable, bit_sums(list(readable.values())), strict=True))

    def _count_arrivals(self, optimizer: Any, arrivals: list[Arrival]) -> None:
        """Count what a probe saw until this step: gradients of the step before, and gradients that were set to 0."""
        stats, figures = self.stats, [figure for old, came, _ in arrivals for figure in (*old, *came)]
        if not figures:
            return
        here = any(bool(figure) for _, came, _ in arrivals for figure in came if not arrives_later(figure))
        if (here or any(map(arrives_later, figures))) and not capturing():
            grads = [p.grad for g in optimizer.param_groups for p in g["params"] if can_read_gradient(p.grad)]
        else:
            grads = []

        def use(tensors: list[Tensor]) -> None:
            values, nonzero = [bool(t) for t in tensors], list[tuple[bool, bool]]()
            for old, came, _ in arrivals:
                nonzero.append((any(values[: len(old)]), any(values[len(old) : len(old) + len(came)])))
                values = values[len(old) + len(came) :]
            is_stale = all(old for old, _ in nonzero)
            stats.stale += is_stale
            stats.fresh += not is_stale
            moments = [steps for _, _, steps in arrivals]
            pairs = zip(moments, moments[1:], nonzero, nonzero[1:], strict=False)
            added = [old for a, b, (_, came), (old, _) in pairs if a == b and came]  # by the next backward of a step
            stats.several += bool(added)
            stats.cleared += bool(added) and not all(added)
            stats.zeroed += bool(grads) and any(came for _, came in nonzero) and not any(values)

        self.transfer.send([*figures, *(any_nonzero(grads) if grads else [])], use)

    def _look(self, optimizer: Any, sums: Mapping[str, Tensor]) -> None:
        """Note which weights this step moved, and which gradients it had."""
        mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
        step = InspectedStep({n for n, p in self.named.items() if p.requires_grad})
        step.owned = {n for n, p in self.named.items() if id(p) in mine}
        names = [name for name in self.before if name in sums]
        changes, sizes = [], []
        for name in names:
            values = self.before[name][1]
            changes.append((sample(self.named[name]) - values).square().sum())
            sizes.append(values.square().sum())
        norms = gradient_norms(self.named)
        findings = [*wrong_modes(self.model)]
        findings += [] if any(map(_is_remote, optimizer.param_groups)) else [*decay([optimizer])]

        def use(tensors: list[Tensor]) -> None:
            parts = iter(tensors)
            step.norms = {name: float(next(parts)) for name in norms}
            old, new = ([int(next(parts)) for _ in names] for _ in range(2))
            moved, size = (sum(float(next(parts)) for _ in names) for _ in range(2))
            step.moved = {name for name, a, b in zip(names, old, new, strict=True) if a != b}
            step.change = math.sqrt(moved / size) if size else math.inf
            self.stats.inspected.append(step)
            self.scaled.stepped({name: norm for name, norm in step.norms.items() if name in step.owned})
            for finding in findings:
                if finding.rule != "mode.eval" or self.moving:
                    self.stats.standing[finding] = self.stats.standing.get(finding, 0) + 1

        old_sums = [self.before[name][0] for name in names]
        self.transfer.send([*norms.values(), *old_sums, *(sums[name] for name in names), *changes, *sizes], use)
        self.scaled.close()

    def _probe(self, optimizer: Any) -> None:
        """Watch, until the next step of this optimizer, whether its gradients were reset."""
        mine = (p for group in optimizer.param_groups for p in group["params"])
        p = next((p for p in mine if p.requires_grad and p.is_leaf and p.grad is not None), None)
        if p is None or id(optimizer) in self.probes:
            return
        arrivals: list[Arrival] = []

        def arrives(gradient: Tensor) -> None:
            if not capturing() and can_read_gradient(gradient):
                old = any_nonzero([p.grad]) if can_read_gradient(p.grad) and p.grad is not None else []
                # of one batch only, and weights that move in between have used the gradient (SAM)
                moment = (self.stats.steps, self.stats.batches, p._version)
                arrivals.append((old, any_nonzero([gradient]), moment))

        self.probes[id(optimizer)] = (p.register_hook(arrives), arrivals)

    def close(self) -> None:
        """Remove every hook."""
        for handle in (*self.handles, *(hook for hook, _ in self.probes.values())):
            handle.remove()
        self._unhook_calls()
        self.laws.close()
        self.scales.close()
        self.scaled.close()
        self.handles, self.probes = [], {}

    def sentences(self, loader: Any) -> list[str]:
        """Return the findings of a training that has ended, with the DataLoader of its data, None for another."""
        self.close()
        stats = self.stats
        samples = pass_checks.samples_in(loader)
        stats.larger = samples > (getattr(loader, "batch_size", 0) or 1)
        stats.checks["coverage"] = self.coverage.sentence(samples)
        stats.workers = loader.num_workers if loader is not None else 0
        live = list[str]()
        try:
            live.extend(self.laws.sentences(loader, stats.steps, len(stats.walks), stats.batches, stats.first_losses))
        except Exception as error:  # the other findings stay
            report(error, "some checks of the whole training are left out")
        return [*live, *rules.sentences(stats, self.model)]

    @guard
    def end(self) -> None:
        """Look at what is there when a training ends; here, and only here, figures of a device are waited for."""
        norms, left = gradient_norms(self.named), self.stats.left
        self.transfer.send(
            norms.values(), lambda tensors: left.update({n: float(t) for n, t in zip(norms, tensors, strict=True)})
        )
        for name, old in self.averages.items():
            self._compare_average(name, old)
        self.transfer.read(AT_END)
        self.count()
        stats, groups = self.stats, [group for o in self.optimizers for group in o.param_groups]
        owned = {id(p) for group in groups for p in group["params"]} | trained_elsewhere(self.optimizers)
        stats.owned = {name for name, p in self.named.items() if id(p) in owned} if self.optimizers else None
        stats.copied = {name for name, p in self.named.items() if id(p) in self.laws.followers()}
        stats.checks |= {
            "answers": self.answers.sentence(),
            "scales": self.scales.sentence(),
            "weight reset": self.weight_reset.sentence(stats.weights),
            "constant baseline": self.baseline.sentence(len(stats.walks)),
            "grad scaler": self.scaled.sentence(),
            "average": self.following.sentence(),
        }
        stats.hidden = [*self.begun, *unlisted_weights(self.model, self.optimizers)]
        stats.initial = max((float(group.get("initial_lr", 0)) for group in groups), default=0.0)

    def _compare_average(self, name: str, old: list[Tensor]) -> None:
        """Note an average of the weights that never changed."""
        new = self._averaged(self.extra[name])
        if new is None or stands_still(name):
            return
        count, averages = len(old), self.stats.averages

        def use(tensors: list[Tensor]) -> None:
            if total(tensors[:count]) == total(tensors[count:]):
                averages.append(name)

        self.transfer.send([*old, *new], use)


def gradient_norms(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the norm of each gradient that is there and can be read, by the name of its parameter."""
    gradients = {name: p.grad for name, p in named.items() if p.grad is not None and can_read_gradient(p.grad)}
    stored = {name: stored_values(grad) for name, grad in gradients.items()}
    return {name: norm(grad) for name, grad in stored.items() if is_readable(grad)}


def _is_remote(group: Mapping[str, Any]) -> bool:
    """Return whether a group of an optimizer has its rate on a device, where it is not read."""
    return any(isinstance(value := group.get(key), Tensor) and arrives_later(value) for key in ("lr", "weight_decay"))


def capturing() -> bool:
    """Return whether a CUDA graph is being captured, or a graph traced: nothing may be read from a tensor then."""
    if torch.compiler.is_compiling():
        return True
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
