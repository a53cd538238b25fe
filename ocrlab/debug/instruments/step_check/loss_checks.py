"""The loss functions of torch as a step calls them: what comes in, what is compared, which way it is pushed.

Nothing here raises by itself: such a step runs to its end, and trains what nobody meant. The same is true for a part of
a loss through which no gradient can flow, such as a Dice of thresholded predictions beside a cross entropy. What was
cut off on purpose, by detach() or no_grad(), is let alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ocrlab.debug.instruments.step_check.findings import Finding, is_readable

FEW = 8  # samples whose targets may well be equal by chance: pages without text
SQUASHED = {"SoftmaxBackward0": "softmax", "SigmoidBackward0": "sigmoid"}
CUT = {  # functions after which logits are not free
    "ReluBackward0": ("ReLU", "no class can be below 0, and where it gives 0 no gradient passes"),
    "TanhBackward0": ("tanh", "all lie between -1 and 1, so that no class can be sure"),
}
BOUNDS = {  # the values that the last function of a model can reach
    "SoftmaxBackward0": ("softmax", 0.0, 1.0),
    "SigmoidBackward0": ("sigmoid", 0.0, 1.0),
    "TanhBackward0": ("tanh", -1.0, 1.0),
    "ReluBackward0": ("ReLU", 0.0, float("inf")),
}
PASSING = ("View", "Reshape", "UnsafeView", "Squeeze", "Unsqueeze", "Permute", "Transpose", "T", "Slice", "Select")
CLASSES = (functional.cross_entropy, functional.nll_loss)
LOGITS = (functional.cross_entropy, functional.binary_cross_entropy_with_logits)
DISTANCES = (functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss)
PLAIN = (*CLASSES, *DISTANCES, functional.binary_cross_entropy, functional.binary_cross_entropy_with_logits)
LOSSES = (*PLAIN, functional.ctc_loss, functional.kl_div)
ARGUMENTS = {functional.ctc_loss: ("log_probs", "targets")}  # of all others: input, target
WARNED = ("targets.constant", "targets.sum", "loss.weights", "loss.logits")  # may be meant
SUMMED = 1e-2  # by which the probabilities of a row may miss 1: half precision
APART = 0.25  # of the samples, which have another class in another order
MANY = 16  # targets of the most frequent class from which on its share is no chance
TIMES = 3  # so many more targets has one class than another, to be called the more frequent one
CUTS = frozenset("gt ge lt le eq ne greater greater_equal less less_equal not_equal isclose".split())
CUTS |= {f"__{name}__" for name in CUTS} | frozenset("argmax argmin argsort bool int long short byte".split())
FLAT = frozenset("round round_ sign sign_ sgn floor floor_ ceil ceil_ trunc trunc_ heaviside".split())  # derivative 0
SUMS = frozenset("add add_ __add__ __radd__ __iadd__ sub __sub__ __rsub__ stack".split())
NODES = 4096  # of a loss's graph, from its end, in which a sum is looked for


@dataclass
class LossWatch:
    """What is noted of each loss function of torch that a step calls; `place` says in which module that is."""

    findings: list[Finding]
    place: Callable[[], str]

    def __post_init__(self) -> None:
        self.values: list[tuple[str, Tensor]] = []
        self.pairs: list[tuple[str, Tensor, Tensor]] = []  # of classes: place, logits, targets

    def before(self, function: Any, args: tuple[Any, ...], named: dict[str, Any], *, meant: bool) -> None:
        """Look at what a loss function is about to compare; `meant`: its targets were made of one value."""
        input, target = arguments(function, args, named)
        if isinstance(input, Tensor) and isinstance(target, Tensor) and is_readable(input) and is_readable(target):
            if function in CLASSES and input.requires_grad and not input.is_leaf:
                input.retain_grad()
                self.pairs.append((f"{self.place()}, target of {function.__name__}", input, target))
            with torch._C.DisableTorchFunction(), torch.no_grad():
                shares = _shares(function, input, target)
                ignored = named.get("ignore_index", -100) if function in CLASSES else None
                rules = (_squashed(function, input), _sizes(function, input, target), _reach(input, target), shares)
                weights = named.get("weight", args[2] if len(args) > 2 and function in CLASSES else None)
                spelled = (*_frames(args, named), *_blank(args, named)) if function is functional.ctc_loss else ()
                logs = _logarithms(function, input, target, named)
                for rule in (*rules, spelled, logs, _weighed(target, weights, ignored)):
                    self.findings += [_at(violation, f"{self.place()}, {function.__name__}") for violation in rule]
                self.findings += [
                    _at(violation, f"{self.place()}, target of {function.__name__}")
                    for violation in (() if meant else _same(target, ignored))
                ]

    def after(self, function: Any, value: Any) -> None:
        """Keep what a loss function returned, to see how the backward pass pushes it."""
        if isinstance(value, Tensor) and value.requires_grad and not value.is_leaf:
            value.retain_grad()
            self.values.append((f"{self.place()}, {function.__name__}", value))

    def pushed(self) -> Iterator[Finding]:
        """Yield the losses that the step makes larger; to be asked after the backward pass."""
        for where, value in self.values:
            if value.grad is not None and bool((value.grad < 0).any()) and not bool((value.grad > 0).any()):
                do = "Remove the minus sign; it is right only where something is to be unlearned"
                got = "it enters the loss with a minus sign, so that each step makes it larger"
                yield Finding("loss.sign", where, got, "a plus sign", do, "warn")

    def mixed(self, calls: Sequence[tuple[list[Tensor], bool]], batch: Sequence[Tensor]) -> Iterator[Finding]:
        """Yield that the classes of two samples are mixed (mixup, CutMix), and the model gets the batch unmixed.

        `calls` of the model: what it got, and whether it gave one tensor; one that mixes by itself has more to tell.
        """
        if len(calls) != 1 or len(calls[0][0]) != 1 or not calls[0][1]:
            return
        input = calls[0][0][0]
        if not any(input is t or (input.shape == t.shape and bool((input == t).all())) for t in batch):
            return
        for (where, logits, targets), (_, second_logits, others) in itertools.combinations(self.pairs, 2):
            if (
                logits is not second_logits
                or targets.shape != others.shape
                or targets.ndim != 1
                or targets.is_floating_point()
            ):
                continue
            apart = float((targets != others).float().mean())
            if len(targets) >= MANY and apart > APART and bool((targets.sort()[0] == others.sort()[0]).all()):
                got = "two losses of the same logits, with the classes of the batch and with those in another order;"
                got += " the model gets the batch as it is"
                do = "Call the model on the mixed input: lam * x + (1 - lam) * x[order]"
                yield Finding("targets.mixed", where, got, "an input that is mixed as its targets are", do)


def _at(finding: tuple[str, str, str, str], where: str) -> Finding:
    rule, got, need, do = finding
    return Finding(rule, where, got, need, do, "warn" if rule in WARNED else "fail")


def arguments(function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
    """Return what a loss function of torch compares: predictions and targets, None where it was not given one."""
    first, second = ARGUMENTS.get(function, ("input", "target"))
    values = dict(zip((first, second), args, strict=False)) | named
    return values.get(first), values.get(second)


def _squashed(function: Any, input: Tensor) -> Iterator[tuple[str, str, str, str]]:
    """Tell of a softmax or sigmoid before a loss that makes its own."""
    last = maker(input)
    if function in LOGITS and last in SQUASHED:
        name = SQUASHED[last]
        got = f"its input comes from a {name}, and it makes its own: gradients are small, and no output can be sure"
        yield "loss.twice", got, "logits", f"Take the {name} out of the model's forward, and use it only to predict"
    if function in LOGITS and last in CUT:
        name, what = CUT[last]
        got = f"its input comes from a {name}: {what}"
        yield "loss.logits", got, "logits of any size", f"Take the {name} after the last layer out: logits need none"
    if function is functional.nll_loss and (last in SQUASHED or bool((input > 0).any())):
        got = f"its input holds {float(input.max()):g}: no logarithm of a probability is above 0"
        got = f"its input comes from a {SQUASHED[last]}, without a logarithm" if last in SQUASHED else got
        yield "loss.logarithm", got, "log_softmax", "Use cross_entropy on the model's logits"


def _logarithms(
    function: Any, input: Tensor, target: Tensor, named: dict[str, Any]
) -> Iterator[tuple[str, str, str, str]]:
    """Tell of probabilities or logits where a loss needs the logarithms of probabilities."""
    last = maker(input)
    if function is functional.ctc_loss and input.ndim >= 2:
        sums = input.float().exp().sum(-1).flatten()
        sums = sums[(input != 0).any(-1).flatten()]  # frames that are filled up
        if sums.numel() and float(((sums - 1).abs() > SUMMED).float().mean()) > 0.5:
            got = (
                f"its input is no logarithm of probabilities: e to the power of a frame sums up to {float(sums[0]):.4g}"
            )
            got = f"its input comes from a {SQUASHED[last]}, without a logarithm" if last in SQUASHED else got
            yield "loss.logarithm", got, "log_softmax", "Call log_softmax(-1) on the logits: it can fall below 0 now"
    if function is functional.kl_div:
        if last in SQUASHED or bool((input > SUMMED).any()):
            got = f"its input holds {float(input.max()):g}: no logarithm of a probability is above 0"
            got = f"its input comes from a {SQUASHED[last]}, without a logarithm" if last in SQUASHED else got
            yield "loss.logarithm", got, "log_softmax", "Give it log_softmax(...) first, probabilities second"
        elif named.get("log_target") and bool((target > SUMMED).any()):
            got = f"log_target=True, and its target holds {float(target.max()):g}"
            yield "loss.logarithm", got, "logarithms", "Leave log_target out, or call log_softmax on the target"
        elif not named.get("log_target") and bool((target < -SUMMED).any()):
            got = f"its target holds {float(target.min()):g}: no probability is below 0"
            yield "loss.logarithm", got, "probabilities", "Call softmax on the target, or set log_target=True"


def _frames(args: tuple[Any, ...], named: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Tell of a CTC loss that is infinite: each character takes a frame, and a blank between two that are equal."""
    if named.get("zero_infinity") or (len(args) > 6 and args[6]):
        return
    for sample, (row, length, there) in enumerate(_texts(args, named)):
        twice = int((row[1:length] == row[: max(0, length - 1)]).sum())
        if length + twice > there:
            got = f"sample {sample} has {there} frames for {length} characters, of which {twice} follow their like"
            do = "Let the model give more frames (a smaller stride, a wider image), or leave such a sample out"
            yield "loss.frames", got, f"{length + twice} frames: less makes the loss infinite", do
            return


def _blank(args: tuple[Any, ...], named: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Tell of texts in which the blank stands as a character: no path of frames can spell them as they are meant."""
    blank = named.get("blank", args[4] if len(args) > 4 else 0)
    texts = _texts(args, named)
    with_it = [sample for sample, (row, length, _) in enumerate(texts) if bool((row[:length] == blank).any())]
    if not with_it:
        return
    first, length, _ = texts[with_it[0]]
    ends = all(bool(row[length - 1] == blank) for row, length, _ in (texts[at] for at in with_it))
    inside = any(bool((row[: length - 1] == blank).any()) and row[length - 1] != blank for row, length, _ in texts)
    got = f"{blank} is the blank and stands in {len(with_it)} of {len(texts)} texts as a character, first in sample"
    got += f" {with_it[0]}: {first[:length][:12].tolist()}"
    do = f"Leave {blank} to the blank where characters are numbered, or give the loss another blank="
    if ends and not inside:
        do = f"If {blank} fills the texts up, give target_lengths without it; else number the characters past the blank"
    yield "loss.blank", got, "texts without the blank", do


def _texts(args: tuple[Any, ...], named: dict[str, Any]) -> list[tuple[Tensor, int, int]]:
    """Return of each sample of a CTC loss its text (filled up or not), the text's length and its frames."""
    values = dict(zip(("log_probs", "targets", "input_lengths", "target_lengths"), args, strict=False)) | named
    text = torch.as_tensor(values["targets"]).cpu()
    frames, lengths = (torch.as_tensor(values[f"{name}_lengths"]).flatten().tolist() for name in ("input", "target"))
    rows = list(text) if text.ndim == 2 else list(text.split(lengths)) if int(sum(lengths)) == len(text) else []
    return list(zip(rows, lengths, frames, strict=False))


def _weighed(target: Tensor, weights: Any, ignored: int | None) -> Iterator[tuple[str, str, str, str]]:
    """Tell of weights of classes that are larger the more frequent a class is."""
    if (
        not isinstance(weights, Tensor)
        or weights.ndim != 1
        or target.is_floating_point()
        or weights.device.type == "meta"
    ):
        return
    values = target[(target != ignored) & (target >= 0) & (target < len(weights))].flatten()
    count = torch.bincount(values, minlength=len(weights))
    most, least = int(count.argmax()), int(count.argmin())
    if int(count[most]) < MANY:
        return
    more = count[:, None] >= TIMES * count[None, :].clamp(min=1)
    larger = weights[:, None] > weights[None, :]
    if bool(more.any()) and bool(larger[more].all()) and float(weights[most]) > TIMES * float(weights[least]):
        got = f"class {most}, with {int(count[most])} of {values.numel()} targets, weighs {float(weights[most]):.3g},"
        got += f" class {least}, with {int(count[least])}, {float(weights[least]):.3g}: the rare one counts the less"
        do = "Weights against rare classes are the inverse of how frequent they are; look at their order too"
        yield "loss.weights", got, "more weight for what is rare", do


def _sizes(function: Any, input: Tensor, target: Tensor) -> Iterator[tuple[str, str, str, str]]:
    if function in DISTANCES and input.shape != target.shape:
        both = torch.broadcast_shapes(input.shape, target.shape)
        got = f"{tuple(input.shape)} against {tuple(target.shape)}, which compares all with all in {tuple(both)}"
        yield "loss.broadcast", got, "the same shape", "Use .squeeze(-1) or .unsqueeze(-1) on one of them"


def _reach(input: Tensor, target: Tensor) -> Iterator[tuple[str, str, str, str]]:
    """Tell of targets that the last function of the model cannot give."""
    last = maker(input)
    if last not in BOUNDS or not target.is_floating_point():
        return
    name, low, high = BOUNDS[last]
    least, most = float(target.min()), float(target.max())
    if least < low - 1e-4 or most > high + 1e-4:
        got = f"targets from {least:g} to {most:g}, and the model ends with a {name}, which gives {low:g} to {high:g}"
        yield "targets.reach", got, "targets that the model can give", "Scale the targets, or take that function out"


def _shares(function: Any, input: Tensor, target: Tensor) -> Iterator[tuple[str, str, str, str]]:
    """Tell of targets of cross_entropy that are neither classes nor shares of them; rows of zeros may not count."""
    if function is not functional.cross_entropy or not target.is_floating_point() or input.shape != target.shape:
        return
    least, most = float(target.min()), float(target.max())
    if least < -SUMMED or most > 1 + SUMMED:
        do = "Divide each row by its sum, or give the classes as whole numbers"
        yield "targets.shares", f"targets from {least:g} to {most:g}", "shares of the classes, 0 to 1", do
        return
    sums = target.float().sum(min(1, target.ndim - 1)).flatten()
    off = ((sums - 1).abs() > SUMMED) & (sums != 0)
    if bool(off.any()):
        got = f"{int(off.sum())} of {sums.numel()} do not sum up to 1 over the classes; the first to {sums[off][0]:g}"
        do = "Where several classes hold at once, binary_cross_entropy_with_logits is meant; else divide by the sum"
        yield "targets.sum", got, "1", do


def _same(target: Tensor, ignored: int | None) -> Iterator[tuple[str, str, str, str]]:
    values = target if ignored is None or target.is_floating_point() else target[target != ignored]
    if values.numel() == 0:
        yield "targets.constant", "every one is ignored", "some that count", "Look at how the targets are made"
    elif target.ndim and len(target) >= FEW and bool((values == values.flatten()[0]).all()):
        got = f"all {values.numel()} are {values.flatten()[0].item():g}"
        do = "Look at the file or the mask that they are read from, at an integer type that cuts 0.9 to 0, and whether"
        do += " the loader shuffles; if it is only this batch, nothing is wrong"
        yield "targets.constant", got, "targets that differ", do


def maker(tensor: Tensor) -> str:
    """Return the name of the function that made a tensor's values in the graph, past what only changes its shape."""
    node: Any = tensor.grad_fn
    for _ in range(8):
        name = node.name() if node is not None else ""
        if name.removesuffix("0").removesuffix("1").removesuffix("Backward") not in PASSING:
            return name
        node = node.next_functions[0][0]
    return ""


class DetachedTerms:
    """What has lost its gradient in a step, and the sums that it went into."""

    def __init__(self) -> None:
        self.lost: dict[int, tuple[Tensor, str]] = {}  # by id: the tensor, and the function that cut it off
        self.sums: list[tuple[Tensor, str]] = []

    def see(self, name: str, args: Any, value: Any) -> None:
        """Note what a function was given and has returned."""
        if not isinstance(value, Tensor) or not torch.is_grad_enabled():
            return
        tensors = [tensor for tensor in _flat(args) if isinstance(tensor, Tensor)]
        cuts = [cut for tensor in tensors if (cut := self._of(tensor))]
        flowing = any(tensor.requires_grad and not self._of(tensor) for tensor in tensors)
        if flowing and (name in FLAT or (name in CUTS and not value.requires_grad)):
            cuts, flowing = [name.strip("_"), *cuts], False
        if cuts and not flowing and name != "detach":
            self.lost[id(value)] = (value, cuts[0])
        elif cuts and name in SUMS and value.numel() <= len(tensors):  # of single numbers
            self.sums += [(value, cut) for tensor in tensors if tensor.numel() == 1 and (cut := self._of(tensor))]

    def _of(self, tensor: Tensor) -> str:
        entry = self.lost.get(id(tensor))
        return entry[1] if entry is not None and entry[0] is tensor else ""

    def within(self, total: Tensor) -> Iterator[Finding]:
        """Yield that a part of the loss `total` has no gradient."""
        nodes = {total.grad_fn}
        waiting = [total.grad_fn]
        while waiting and len(nodes) < NODES:
            for node, _ in getattr(waiting.pop(0), "next_functions", ()):
                if node is not None and node not in nodes:
                    nodes.add(node)
                    waiting.append(node)
        for value, cut in self.sums:
            if value.grad_fn in nodes:
                got = f"one of its parts goes through `{cut}` of what the model gave: a number, that trains nothing"
                do = "Compute it from the probabilities themselves, as a soft Dice does, or leave it out"
                yield Finding("loss.part", "the loss", got, "a gradient in each part", do, "warn")
                return


def _flat(args: Any) -> Iterator[Any]:
    for argument in args:
        if isinstance(argument, list | tuple):
            yield from argument
        else:
            yield argument
