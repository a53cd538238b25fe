"""Attention that sees the padding of a batch because nothing hides it: what a row gives then depends on its neighbours.

Which places are filled up is read from the batch; that an attention's keys are of these places, from the keys: they are
the same in all rows there, and nowhere else. Whether it sees them is tried: other keys there, another answer elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ocrlab.debug.instruments.step_check.findings import Finding, is_readable
from ocrlab.debug.instruments.step_check.padding_in_loss import ROWS, only_filling

FORWARD, SCALED = functional.multi_head_attention_forward, functional.scaled_dot_product_attention
PRODUCTS = frozenset("matmul __matmul__ bmm".split())
CHANGE = 1e-3  # of the largest answer: by more, what stands in the padding is seen
WEIGHT = 0.1  # of an equal share: attention that gives more to the padding sees it
DEEP = 60  # frames up to the module that calls


def padding_masks(named: Sequence[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors of a batch whose rows are filled up by different lengths, each with where (rows, length)."""
    for name, tensor in named:
        if not is_readable(tensor) or tensor.is_complex() or tensor.ndim not in (2, 3) or min(tensor.shape[:2]) < ROWS:
            continue
        for turned in (False, True):
            values = tensor.detach().flip(1) if turned else tensor.detach()
            if values.ndim == 3:
                there = (values == 0).all(2)
            elif values.is_floating_point() and values.unique().numel() > 2:
                break
            else:
                there = values == values[:, -1:].int().mode(0).values.to(values.dtype)
            fill = there.flip(1).int().cumprod(1).flip(1).bool()
            if bool((fill == there).all()) and fill.sum(1).unique().numel() > 2:
                yield name, fill.flip(1) if turned else fill
                break


class UnmaskedAttention(TorchFunctionMode):
    """While it is entered, attention that sees the padding of a batch is found; in eval mode, without gradients."""

    def __init__(self, model: nn.Module, named: Sequence[tuple[str, Tensor]]) -> None:
        super().__init__()
        self.names = {id(module): name for name, module in model.named_modules()}
        self.fills = list(padding_masks(named))
        self.products: dict[tuple[int, ...], tuple[str, Tensor]] = {}  # by shape: scores over keys that are filled up
        self.matches: list[tuple[str, str]] = []  # module, tensor of the batch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        value = func(*args, **kwargs)
        if self.fills and not self.matches:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                if func in (FORWARD, SCALED):
                    self._try(func, args, kwargs, value)
                else:
                    self._by_hand(getattr(func, "__name__", ""), args, kwargs, value)
        return value

    def _fill(self, keys: Tensor) -> tuple[str, Tensor] | None:
        """Return the tensor of the batch whose padding some keys (rows, length, width) are of, and where it is."""
        for name, whole in self.fills if is_readable(keys) else ():
            for fill in (whole, whole[:, :-1], whole[:, 1:]):
                if fill.shape == keys.shape[:2] and only_filling(keys, fill := fill.to(keys.device)):
                    return name, fill
        return None

    def _try(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> None:
        """Put other keys and values where the padding is, and look whether the answers elsewhere change."""
        arguments = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        query, key, other = (arguments.get(name) for name in ("query", "key", "value"))
        drops = kwargs.get("training", True) if func is FORWARD else kwargs.get("dropout_p", 0)
        if not (isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(other, Tensor)) or drops:
            return
        wide = 3 if func is FORWARD else 4
        if key.ndim != wide or other.ndim != wide or query.ndim != wide:
            return
        match = self._fill(key.transpose(0, 1) if func is FORWARD else key.transpose(1, 2).flatten(2))
        if match is None:
            return
        name, fill = match
        at = fill.T[..., None] if func is FORWARD else fill[:, None, :, None]
        changed = {"key": _noised(key, at, 0), "value": _noised(other, at, 1)}
        rest = args[3:] if len(args) > 3 else ()
        named = {k: v for k, v in kwargs.items() if k not in ("query", "key", "value")}
        after = func(query, changed["key"], changed["value"], *rest, **named)
        before, after = (answer[0] if isinstance(answer, tuple) else answer for answer in (value, after))
        off = (before - after).abs().nan_to_num()
        off = off.amax(-1).T if func is FORWARD else off.amax((1, 3))  # (rows, queries)
        visible = off[~fill] if off.shape == fill.shape else off.flatten()
        if bool((visible > CHANGE * before.abs().nan_to_num().max()).float().mean() > 0.5):
            self.matches.append((self._place(), name))

    def _by_hand(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> None:
        """Look at a product of queries and keys, and at the softmax of what has its shape."""
        if not isinstance(value, Tensor) or value.ndim not in (3, 4) or not is_readable(value):
            return
        shape = tuple(value.shape)
        if name in PRODUCTS and len(args) == 2 and shape[-1] == shape[-2] and args[1].ndim == value.ndim:
            keys = args[1].transpose(-1, -2)  # (rows, length, width) or (rows, heads, length, width)
            match = self._fill(keys if keys.ndim == 3 else keys.transpose(1, 2).flatten(2))
            if match is not None:
                self.products[shape] = match
        elif name == "softmax" and shape in self.products and kwargs.get("dim", args[-1]) in (-1, len(shape) - 1):
            tensor, fill = self.products.pop(shape)
            weights = value if value.ndim == 3 else value.mean(1)  # (rows, queries, keys)
            pairs = ~fill[:, :, None] & fill[:, None, :]
            if float(weights[pairs].mean()) > WEIGHT / shape[-1]:
                self.matches.append((self._place(), tensor))

    def _place(self) -> str:
        frame: Any = sys._getframe(2)
        for _ in range(DEEP):
            if frame is None:
                break
            name = self.names.get(id(frame.f_locals.get("self")))
            if name is not None:
                return name or "the model itself"
            frame = frame.f_back
        return "the attention"

    def findings(self) -> Iterator[Finding]:
        """Yield what was seen, once."""
        for place, name in self.matches[:1]:
            batch = "the batch" if name == "batch" else f"batch.{name}"
            got = f"what stands in the padding of {batch} changes what the other places of its row give"
            do = "Hide it: key_padding_mask or src_key_padding_mask (True hides), attn_mask of"
            do += (
                " scaled_dot_product_attention (True shows); without, an answer depends on how far its batch is filled"
            )
            do += " up. If what fills rows up is to be seen, nothing is wrong"
            yield Finding("attention.unmasked", place, got, "a mask that hides the padding", do, "warn")


def _noised(tensor: Tensor, at: Tensor, seed: int) -> Tensor:
    """Return a tensor with noise of its own size where `at` is True; no random state is touched."""
    noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed)).to(tensor)
    return tensor + noise * tensor.std() * at
