"""Padding that is trained on, and attention that sees nothing else: told from where values stand, not from names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ocrlab.debug.instruments.step_check.findings import Finding, is_readable

SHARE = 0.25  # of all targets, from which on padding is what is learned
ROWS = 4  # rows, or pairs of them, from which on it is no chance
PUSHED = 0.9  # of the padded places that get a gradient: none does where they are left out
SAME = 1e-6  # of the largest value: by less, two keys are one


def find_padding(targets: Tensor, rows: int) -> tuple[int, Tensor] | None:
    """Return the class that fills up the rows of targets at one side, and where (rows, length); None for none.

    It stands nowhere else, fills rows by different lengths, and the other targets are of several classes.
    """
    if rows < ROWS or targets.is_floating_point() or targets.numel() % rows or targets.numel() // rows < ROWS:
        return None
    grid = targets.detach().reshape(rows, -1)
    for side in (grid, grid.flip(1)):
        value = side[side[:, -1].mode().indices, -1]
        is_it = side == value
        fill = is_it.flip(1).cumprod(1).flip(1).bool()
        lengths = fill.sum(1)
        others = side[~is_it].unique()
        much = lengths.unique().numel() > 2 and float(fill.float().mean()) >= SHARE
        if bool((fill == is_it).all()) and much and others.numel() >= ROWS:
            return int(value), fill if side is grid else fill.flip(1)
    return None


def check_padding_loss(pairs: list[tuple[str, Tensor, Tensor]], rows: int) -> Iterator[Finding]:
    """Yield padding that a loss counts; pairs of (place, logits, targets), to be asked after the backward pass."""
    for where, logits, targets in pairs:
        padding = find_padding(targets, rows)
        gradient = logits.grad
        if padding is None or gradient is None or not is_readable(gradient) or gradient.ndim < 2:
            continue
        value, fill = padding
        pushed = gradient.detach().abs().sum(1).reshape(-1) > 0  # (rows * length,) of logits (N, classes, ...)
        if pushed.numel() != fill.numel() or float(pushed[fill.reshape(-1)].float().mean()) < PUSHED:
            continue
        got = f"{float(fill.float().mean()):.0%} of its targets are {value}, only at the end of rows, and all count"
        do = f"If {value} fills rows up, leave it out: ignore_index={value}, or -100 in its place. The loss falls by"
        do += " guessing padding, and says little about the rest"
        yield Finding("targets.padding", where, got, "a loss of what is no padding", do, "warn")


class AttentionWatch(TorchFunctionMode):
    """While it is entered, attention that sees only what is the same in all rows is found; best in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.shares: list[str] = []  # in words, what was seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (functional.multi_head_attention_forward, functional.scaled_dot_product_attention):
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self._see(func, args, kwargs)
        return func(*args, **kwargs)

    def _see(self, func: Any, args: Any, kwargs: Any) -> None:
        names = ("query", "key", "value", "attn_mask")
        arguments = (
            dict(zip(names, args[: 4 if func is functional.scaled_dot_product_attention else 3], strict=False)) | kwargs
        )
        keys = arguments.get("key")
        if func is functional.multi_head_attention_forward:  # keys (length, rows, width), mask (rows, length)
            mask = arguments.get("key_padding_mask")
            if not isinstance(keys, Tensor) or not isinstance(mask, Tensor) or keys.ndim != 3 or mask.ndim != 2:
                return
            keys, visible = keys.transpose(0, 1), ~mask if mask.dtype == torch.bool else mask == 0
        else:  # keys (rows, heads, length, width), mask (rows, heads or 1, queries or 1, length)
            mask = arguments.get("attn_mask")
            if not isinstance(keys, Tensor) or not isinstance(mask, Tensor) or keys.ndim != 4 or mask.ndim != 4:
                return
            keys, visible = keys.transpose(1, 2).flatten(2), mask if mask.dtype == torch.bool else mask == 0
            visible = visible.flatten(1, 2).any(1)
        if is_readable(keys) and visible.shape == keys.shape[:2] and len(keys) >= ROWS and only_filling(keys, visible):
            self.shares.append(f"{float(visible.float().mean()):.0%} of the places")

    def findings(self) -> Iterator[Finding]:
        """Yield what was seen, once."""
        for share in self.shares[:1]:
            got = f"its mask lets it see {share}, and what stands there is the same in all rows: it sees only padding"
            do = "Turn the mask round: True in key_padding_mask hides a place,"
            do += " True in scaled_dot_product_attention shows it"
            yield Finding("attention.padding", "the attention", got, "a mask that hides the padding", do)


def only_filling(keys: Tensor, visible: Tensor) -> bool:
    """Tell whether the keys (rows, length, width) that may be seen are, place for place, the same in all rows."""
    if bool(visible.all()) or not bool(visible.any()):
        return False
    return _varies(keys, visible) is False and _varies(keys, ~visible) is True


def _varies(keys: Tensor, chosen: Tensor) -> bool | None:
    """Tell whether chosen keys differ between rows at any place; None where too few can be compared."""
    count = chosen.sum(0)
    if int((count - 1).clamp(min=0).sum()) < ROWS:
        return None
    first = keys[chosen.to(torch.uint8).argmax(0), torch.arange(keys.shape[1], device=keys.device)]
    off = (keys - first).abs().amax(-1)
    return bool((off[chosen] > SAME * keys.abs().max()).any())
