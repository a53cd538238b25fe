"""Padding that is trained on, that attention sees, or that a recurrent layer ends in.

All is recognised from where values stand, not from names. Which places are filled up is read from the batch; that an
attention's keys are of these places, from the keys: they are the same in all rows there, and nowhere else. Whether it
sees them is tried: other keys there, another answer elsewhere.
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

PADDED_SHARE = 0.25  # of all targets, from which on padding is what is learned
ROWS = 4  # rows, or pairs of them, from which on it is no chance
PUSHED = 0.9  # of the padded places that get a gradient: none does where they are left out
SAME = 1e-6  # of the largest value: by less, two keys are one
FORWARD, SCALED = functional.multi_head_attention_forward, functional.scaled_dot_product_attention
PRODUCTS = frozenset("matmul __matmul__ bmm".split())
CHANGE = 1e-3  # of the largest answer: by more, what stands in the padding is seen
WEIGHT = 0.1  # of an equal share: attention that gives more to the padding sees it
DEEPEST_FRAME = 60  # frames up to the module that calls


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
        much = lengths.unique().numel() > 2 and float(fill.float().mean()) >= PADDED_SHARE
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
        for _ in range(DEEPEST_FRAME):
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


class RecurrentWatch:
    """While it is entered, what recurrent layers of a model give is kept; ask for `findings` after the backward pass.

    Which steps are padding is told by the tokens that an embedding of the model got in the same pass.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.fills: list[Tensor] = []  # of tokens (rows, length): where padding stands
        self.outputs: list[tuple[str, nn.RNNBase, Tensor, Tensor]] = []  # layer, its steps, its last state
        self.handles: list[Any] = []

    def __enter__(self) -> RecurrentWatch:
        for name, module in self.model.named_modules():
            if isinstance(module, nn.Embedding):
                self.handles.append(module.register_forward_hook(self._tokens))
            elif isinstance(module, nn.RNNBase):
                self.handles.append(module.register_forward_hook(self._steps(name)))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def _tokens(self, _module: nn.Module, args: Any, _output: Any) -> None:
        ids = args[0] if args else None
        if isinstance(ids, Tensor) and ids.ndim == 2 and is_readable(ids):
            with torch._C.DisableTorchFunction():
                for rows in (ids, ids.t()):
                    padding = find_padding(rows, len(rows))
                    self.fills += [padding[1]] if padding is not None else []

    def _steps(self, name: str) -> Any:
        def keep(module: nn.RNNBase, _args: Any, output: Any) -> None:
            steps, state = output
            state = state[0] if isinstance(state, tuple) else state
            if isinstance(steps, Tensor) and steps.ndim == 3 and steps.requires_grad and not steps.is_leaf:
                steps.retain_grad()
                state.retain_grad()
                self.outputs.append((name, module, steps, state))

        return keep

    def findings(self) -> Iterator[Finding]:
        """Yield each layer of which only the last step or state is read, which is padding in many rows."""
        for name, module, steps, state in self.outputs:
            sizes = steps.shape[:2] if module.batch_first else (steps.shape[1], steps.shape[0])
            fill = next((fill for fill in self.fills if fill.shape == sizes), None)
            if fill is None or not bool(fill[:, -1].any()):
                continue
            count = int(fill[:, -1].sum())
            if _only_last(steps, module.batch_first) or (steps.grad is None and _forward_part(module, state)):
                got = f"only its last step is read, and in {count} of {len(fill)} rows that is padding"
                do = "Pack the sequences with their lengths (pack_padded_sequence), or take the step at length - 1"
                yield Finding("recurrent.padding", name or "the model", got, "the last step that is none", do, "warn")


def _only_last(steps: Tensor, batch_first: bool) -> bool:
    """Tell whether the gradient of all steps is 0 but for the last one of each row."""
    if steps.grad is None:
        return False
    by_step = steps.grad.detach().abs().amax((0, 2) if batch_first else (1, 2))  # (length,)
    return bool(by_step[-1] > 0) and not bool(by_step[:-1].any())


def _forward_part(module: nn.RNNBase, state: Tensor) -> bool:
    """Tell whether the last state of the way forward gets a gradient."""
    ways = 2 if module.bidirectional else 1
    gradient = state.grad
    return gradient is not None and bool(gradient.detach()[::ways].any())
