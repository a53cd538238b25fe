"""What a forward pass does to its axes: a softmax over one value, and a view() where a transpose is meant.

A view never moves an axis. Where its result has the sizes that a transpose would have given, its rows are made of
pieces of others: nothing raises, and the model learns from a shuffled picture of what it sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ocrlab.debug.instruments.step_check.findings import Finding

VIEWS = frozenset("view reshape _unsafe_view".split())
MOVES = frozenset("transpose permute swapaxes swapdims movedim".split())
SAME = frozenset("contiguous clone dropout add __add__ __radd__ add_ mul __mul__ relu gelu to".split())  # axes stay
READERS = frozenset("linear layer_norm lstm gru conv1d conv2d multi_head_attention_forward".split())
LAYERS = frozenset(("AddmmBackward0", "MmBackward0", "ConvolutionBackward0"))
SCORES = tuple("View UnsafeView Squeeze Unsqueeze Transpose T Permute MaskedFill Where Div Mul Add Sub Clone".split())
NODES = 12  # of a graph, between a convolution and what its maps are viewed as
COLOURS = (3, 4)
FEWEST = 4  # samples of a batch


class AxisWatch:
    """The views and softmaxes of one forward pass; `place` says in which module it is."""

    def __init__(
        self, findings: list[Finding], place: Callable[[], str], inside: Callable[[], bool] = bool, rows: int = 0
    ) -> None:
        self.findings, self.place, self.inside, self.rows = findings, place, inside, rows
        self.heads: set[tuple[int, ...]] = set()  # (samples, heads, places): heads that were moved before the places
        self.torn: dict[int, tuple[Tensor, str]] = {}  # by id: what a view has made, and of what

    def see(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> None:
        """Note what a function did to its first argument."""
        input = args[0] if args else kwargs.get("input")
        if name in READERS and isinstance(input, Tensor):
            self._read(input, name)
        if not isinstance(input, Tensor) or not isinstance(value, Tensor):
            return
        if name in ("softmax", "log_softmax"):
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            self._alone(input, dim)
            self._across(input, dim, name)
        elif name in MOVES:
            self._moved(input, value)
        elif name in VIEWS and (what := self._tears(input, value)):
            self.torn[id(value)] = (value, what)
        elif name in SAME and (origin := self._of(input)) and value.shape == input.shape:
            self.torn[id(value)] = (value, origin)

    def _of(self, tensor: Tensor) -> str:
        entry = self.torn.get(id(tensor))
        return entry[1] if entry is not None and entry[0] is tensor else ""

    def _read(self, tensor: Tensor, name: str) -> None:
        """Tell of a layer that reads the rows of what was torn: one that only counts or averages it does not mind."""
        what = self._of(tensor)
        if what and "axes.torn" not in {finding.rule for finding in self.findings}:
            do = "view() and reshape() do not move axes: put transpose() or permute() before it"
            got = f"{what}, and read by {name} as if its axes had been moved: each row is made of pieces of others"
            self.findings.append(Finding("axes.torn", self.place(), got, "a transpose before the view", do))

    def _moved(self, input: Tensor, value: Tensor) -> None:
        if value.ndim >= 4 and value.ndim == input.ndim and value.shape[-3] != value.shape[-2]:
            last = input.shape[-3:-1] if input.ndim == 4 else (input.shape[1], input.shape[3])
            if value.shape[-3:-1] == (last[1], last[0]):
                self.heads.add(tuple(value.shape[-4:-1]))

    def _tears(self, input: Tensor, value: Tensor) -> str:
        """Return in words what a view tears; '' where it may be meant."""
        old, new = tuple(input.shape), tuple(value.shape)
        if len(old) not in (3, 4) or 1 in old[1:] or 1 in new or not value.numel():
            return ""
        words = f"{old} viewed as {new}"
        if len(old) == 4 and old[:3] in self.heads:
            merged = old[1] * old[3]
            return words if new in ((old[0], old[2], merged), (old[0] * old[2], merged)) else ""
        if new[0] != old[0]:
            return ""
        has_channels = _first_is_channels(input)
        if len(old) == 4 and len(new) == 3:
            _, channels, height, width = old
            tokens = new[1:] == (height * width, channels) and channels != height * width
            columns = new[1:] == (width, channels * height) and bool(channels % width)
            return words if has_channels and (tokens or columns) else ""
        if len(old) != len(new) or old == new or sorted(old[1:]) != sorted(new[1:]):
            return ""
        if len(old) == 4:
            last = input.grad_fn is None and old[3] in COLOURS and new[1] == old[3] and old[1] not in COLOURS
            return words if last or (has_channels and new[3] == old[1]) else ""
        whole = not old[1] % old[2] or not old[2] % old[1]  # rows may be stacked, or cut into equal pieces
        return words if has_channels or not whole else ""

    def _alone(self, input: Tensor, dim: Any) -> None:
        """Tell of a softmax over the one score of a layer, which is 1 whatever the layer gives."""
        if not isinstance(dim, int) or not input.requires_grad or not -input.ndim <= dim < input.ndim:
            return
        others = [size for at, size in enumerate(input.shape) if at not in (0, dim % input.ndim)]
        if input.shape[dim] != 1 or not others or max(others) == 1 or _source(input, SCORES) not in LAYERS:
            return
        got = f"a softmax over dimension {dim} of {tuple(input.shape)}, which holds one value: all of its weights are 1"
        longest = max(range(1, input.ndim), key=lambda at: input.shape[at])
        do = f"Take it over the dimension that is weighed (dim={longest}), or make the scores more than one"
        self.findings.append(Finding("softmax.one", self.place(), got, "several values", do, "warn"))

    def _across(self, input: Tensor, dim: Any, name: str) -> None:
        """Tell of a softmax of a loss over the samples of the batch: of (samples, classes) that a layer gave."""
        if input.ndim != 2 or dim not in (0, -2) or not input.requires_grad or self.inside():
            return
        rows, columns = input.shape
        if rows != self.rows or not FEWEST <= rows != columns > 1 or _source(input, SCORES) not in LAYERS:
            return
        got = f"{name} over dimension 0 of {(rows, columns)}: over the {rows} samples of the batch, and not the classes"
        do = "Take it over the classes (dim=1)"
        self.findings.append(Finding("softmax.batch", self.place(), got, "each sample's own", do, "warn"))


def _source(tensor: Tensor, passing: tuple[str, ...]) -> str:
    """Return the name of the node that made a tensor, past those that only pass its values on."""
    node: Any = tensor.grad_fn
    for _ in range(NODES):
        name = node.name() if node is not None else ""
        if name.rstrip("0123456789").removesuffix("Backward") not in passing:
            return name
        node = node.next_functions[0][0]
    return ""


def _first_is_channels(tensor: Tensor) -> bool:
    """Tell whether dimension 1 holds channels: of a convolution, past what keeps the axes, or of a picture."""
    node: Any = tensor.grad_fn
    if node is None:
        return tensor.ndim == 4 and tensor.shape[1] in COLOURS and tensor.shape[3] not in COLOURS
    for _ in range(NODES):
        name = node.name() if node is not None else ""
        if name.startswith("ConvolutionBackward"):
            return True
        if not name or any(word in name for word in ("View", "Permute", "Transpose", "mm", "Mm", "Accumulate")):
            return False
        node = node.next_functions[0][0] if node.next_functions else None
    return False
