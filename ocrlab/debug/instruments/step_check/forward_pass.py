"""The forward pass of any module, watched: what each stage gives, its shape, and the first that is not finite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from ocrlab.debug.instruments.compiled_modules import is_jit
from ocrlab.debug.instruments.step_check.findings import (
    Finding,
    Range,
    check_values,
    is_attention_mask,
    is_readable,
    not_finite,
    position_text,
    value_at,
)
from ocrlab.debug.instruments.step_check.image_checks import check_scale
from ocrlab.debug.instruments.tensor_facts import under_vmap
from ocrlab.debug.instruments.tensor_tree import dotted_tensors

LARGE = 1e4  # root mean square of what a layer gives; half precision ends at 65504
FLAT = 1e-6  # slope of a sigmoid at 14
FEW = 32  # values from which BatchNorm's mean and variance are those of the data


@dataclass(frozen=True)
class Stage:
    """One call of a module: its name and class, and of each tensor that it returned shape, type, device and format."""

    name: str
    kind: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    device: str
    format: str


class ForwardWatch:
    """While it is entered, every module of a model reports what it returns; the hooks are gone for certain after it."""

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str] | None,
        outputs: Sequence[Range],
        shapes: Mapping[str, Sequence[int | None]],
    ) -> None:
        self.model, self.names, self.outputs, self.shapes = model, names, outputs, dict(shapes)
        self.stages: list[Stage] = []
        self.findings: list[Finding] = []
        self.within: list[str] = []
        self.spoilt = 0  # modules with a value that is not finite, after the first
        self.reported_rules: set[str] = set()  # rules of which the first module is enough
        self.output_tensors: list[Tensor] = []  # what the model returned and a gradient should reach
        self._handles: list[Any] = []

    def __enter__(self) -> ForwardWatch:
        for name, module in self.model.named_modules():
            if is_jit(module):
                continue
            hooks = (self._before(name), self._after(name))
            self._handles.append(module.register_forward_pre_hook(hooks[0]))
            self._handles.append(module.register_forward_hook(hooks[1]))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def place(self) -> str:
        """Return the module that is running, or ran last."""
        if self.within:
            return self.within[-1] or "the model itself"
        return f"the loss, after {self.stages[-1].name or 'the model'}" if self.stages else "before any module"

    def missing(self) -> Iterator[Finding]:
        """Yield the modules whose shape was to be checked and that never ran."""
        names = {stage.name for stage in self.stages}
        for name in self.shapes:
            if name not in names:
                exists = any(name == module for module, _ in self.model.named_modules())
                got = "it was not called" if exists else "there is no module of this name"
                yield Finding("shape.missing", name, got, "an output", "Correct the name, or call it in forward")

    def _before(self, name: str) -> Any:
        def enter(_module: nn.Module, _args: Any) -> None:
            self.within.append(name)

        return enter

    def _after(self, name: str) -> Any:
        def leave(module: nn.Module, args: Any, output: Any) -> None:
            while self.within and self.within.pop() != name:
                pass
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self._look(name, module, args, output)

        return leave

    def _look(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        outputs = list(dotted_tensors(output))
        first = outputs[0][1] if outputs else None
        shapes = tuple(tuple(t.shape) for _, t in outputs)
        kinds = tuple(str(t.dtype).removeprefix("torch.") for _, t in outputs)
        device, layout = (str(first.device), memory_format(first)) if first is not None else ("", "")
        self.stages.append(Stage(name, type(module).__name__, shapes, kinds, device, layout))
        if any(under_vmap(tensor) for _, tensor in outputs):
            return  # no value can be read there, nor a gradient be kept
        label = name or "the model itself"
        self._finite(label, module, args, outputs)
        self._formats(label, module, args, first)
        self._sizes(label, module, args, first)
        if name in self.shapes and shapes and not shape_matches(shapes[0], self.shapes[name]):
            need = " x ".join("any" if n is None else str(n) for n in self.shapes[name])
            got = " x ".join(map(str, shapes[0]))
            do = "Look at strides and padding between the stage before and this one"
            self.findings.append(Finding("shape.stage", label, got, need, do))
        if not name:
            self.output_tensors += [t for _, t in outputs if t.requires_grad and not t.is_leaf]
            for tensor in self.output_tensors:
                tensor.retain_grad()
        if not name and self.outputs:
            finite = [(n if n != "batch" else "output", t) for n, t in outputs if not_finite(t) is None]
            self.findings += check_values(finite, self.outputs, self.names, "output")

    def _finite(self, label: str, module: nn.Module, args: Any, outputs: list[tuple[str, Tensor]]) -> None:
        """Report the first module that returns NaN or infinity; what follows it only passes it on."""
        for name, tensor in outputs:
            broken = not_finite(tensor)
            if broken is None or is_attention_mask(tensor):
                continue
            self.spoilt += 1
            if self.spoilt > 1:
                return
            came_in = any(not_finite(t) is not None for _, t in dotted_tensors(args))
            weights = [n for n, p in module.named_parameters(recurse=False) if not_finite(p) is not None]
            source = "its input is not finite either" if came_in else "its input is finite"
            source += f"; its {', '.join(weights)} is not" if weights else ""
            part = f", output {name}" if name != "batch" else ""
            got = f"{value_at(tensor, broken)}, {tensor.dtype}; {source}".replace("torch.", "")
            low = tensor.dtype in (torch.float16, torch.bfloat16)
            do = (
                "Compute this module in float32"
                if low and not weights and not came_in
                else "Look at its weights and input"
            )
            where = f"{label} ({type(module).__name__}){part}, {position_text(broken, self.names)}"
            self.findings.append(Finding("forward.finite", where, got, "finite", do))
            return

    def _formats(self, label: str, module: nn.Module, args: Any, first: Tensor | None) -> None:
        """Report a module that gets channels_last and returns something else: the next one copies, every step."""
        inputs = [t for _, t in dotted_tensors(args)][:1]
        if first is None or not inputs or next(module.children(), None) is not None:
            return
        if memory_format(inputs[0]) == "channels_last" and memory_format(first) == "contiguous":
            do = "Keep channels_last through this module, or put a .contiguous(memory_format=...) where it is meant"
            where = f"{label} ({type(module).__name__})"
            self.findings.append(Finding("format.lost", where, "contiguous", "channels_last as it came", do, "warn"))

    def _sizes(self, label: str, module: nn.Module, args: Any, first: Tensor | None) -> None:
        """Report the first module that gets or gives numbers with which training goes nowhere."""
        came = next((t for _, t in dotted_tensors(args)), None)
        if (
            came is None
            or first is None
            or not (is_readable(came) and is_readable(first))
            or not first.is_floating_point()
        ):
            return
        where, rules = f"{label} ({type(module).__name__})", dict(_numbers(module, came.detach(), first.detach()))
        if "input.scale" not in rules and next(module.parameters(recurse=False), None) is not None:
            self.reported_rules.add("input.scale")  # what comes after a layer has the scale that this one made
        for rule, (got, need, do) in rules.items():
            if rule not in self.reported_rules:
                self.reported_rules.add(rule)
                self.findings.append(Finding(rule, where, got, need, do, "warn"))

    def used(self) -> Iterator[Finding]:
        """Yield that the loss does not depend on what the model returned; to be asked after the backward pass."""
        if self.output_tensors and all(tensor.grad is None for tensor in self.output_tensors):
            do = "Look for a name that was written over: the loss may compare the targets with themselves"
            got = "no gradient reaches what the model returned; the loss is made of something else"
            yield Finding("loss.ignores", "the model's output", got, "a loss of the prediction", do)


def _numbers(module: nn.Module, came: Tensor, first: Tensor) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield what is wrong with the size of the numbers that a module gets and gives."""
    layer = isinstance(module, _ConvNd | nn.Linear)
    for violation in check_scale(came) if layer else ():
        yield "input.scale", violation
    if layer and (size := float(first.float().square().mean().sqrt())) > LARGE:
        do = "Look at its initial weights, and put a normalisation before it"
        yield "forward.large", (f"values of {size:g} (root mean square)", f"below {LARGE:g}", do)
    if isinstance(module, nn.ReLU | nn.ReLU6) and first.numel() >= 8 and not bool(first.count_nonzero()):
        do = "Look at the bias and the scale of the layer before it, and at the learning rate of the steps until now"
        yield "forward.dead", (f"all {first.numel()} values are 0: no layer after it can learn", "some above 0", do)
    if isinstance(module, nn.Sigmoid | nn.Tanh):
        slope = first * (1 - first) if isinstance(module, nn.Sigmoid) else 1 - first.square()
        if first.numel() >= 8 and float((slope < FLAT).float().mean()) > 0.99:
            do = "Look at the initial weights and the scale of what comes in"
            yield "forward.saturated", ("99 % of its values are where it is flat: no gradient passes", "a slope", do)
    if isinstance(module, _BatchNorm) and module.training and module.momentum == 0 and has_initial_statistics(module):
        do = "Give it a momentum of 0.1: in eval mode it divides by statistics that no data has made"
        yield "batchnorm.momentum", ("a momentum of 0: its mean stays 0 and its variance 1", "above 0", do)
    values = came.numel() // came.shape[1] if came.ndim > 1 else 0
    if isinstance(module, _BatchNorm) and module.training and came.shape[0] == 1 and values < FEW:
        do = "Use a larger batch or crop, GroupNorm, or BatchNorm in eval mode"
        yield "batchnorm.one", (f"statistics of {values} values a channel, of one sample", f"{FEW} or more", do)


def has_initial_statistics(module: _BatchNorm) -> bool:
    """Return whether the running statistics are those of a module that has seen nothing."""
    mean, variance = module.running_mean, module.running_var
    return mean is not None and variance is not None and not bool(mean.any()) and bool((variance == 1).all())


def shape_matches(shape: Sequence[int], rule: Sequence[int | None]) -> bool:
    """Return whether a shape is as a rule wants it."""
    return len(shape) == len(rule) and all(want is None or n == want for n, want in zip(shape, rule, strict=True))


def memory_format(tensor: Tensor) -> str:
    """Return `channels_last`, `contiguous` or `other`; a 4-D tensor that is both at once counts as `any`."""
    if not is_readable(tensor):
        return "other"
    contiguous = tensor.is_contiguous()
    last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return "any" if contiguous and last else "channels_last" if last else "contiguous" if contiguous else "other"
