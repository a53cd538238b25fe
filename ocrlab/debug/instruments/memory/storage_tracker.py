"""Every storage from its birth to its death, on any device, below autograd; nothing is kept alive by it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from ocrlab.debug.instruments.memory.timeline import OUTSIDE, Block
from ocrlab.debug.instruments.tensor_tree import nested_tensors
from ocrlab.run_folder.fail_safe import InstrumentGuard

ROUNDED = {"cuda": 512, "cpu": 64}  # bytes that each device's allocator rounds up to
CHANGED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: [{} {}] is at "
    "version {}; expected version {} instead. Look for an operation that ends in _ or for += on it."
)


class StorageTracker(TorchDispatchMode):
    """Follows the storages that operators make; `where` says (module, phase), `stack` the caller's lines or nothing."""

    counts_fakes = False

    def __init__(
        self, where: Callable[[], tuple[str, str]], stack: Callable[[], tuple[str, ...]] | None = None
    ) -> None:
        super().__init__()
        self.where, self.stack = where, stack
        self.blocks: dict[int, Block] = {}  # alive, by the address of the storage
        self.dead: list[Block] = []
        self.event = 0
        self.step = 0
        self.ended = False
        self.guard = InstrumentGuard("memory.watch")
        self._refs: dict[int, weakref.ref[Any]] = {}
        self._tensors_by_storage: dict[int, weakref.ref[Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not self.off:
            with self.guard():
                self._note(func, args, kwargs, out)
        return out

    @property
    def off(self) -> bool:
        """Whether nothing is followed any more: it has ended, or failed."""
        return self.ended or bool(self.guard.problem)

    def classify(self, tensor: Tensor, kind: str, owner: str = "") -> None:
        """Name what a tensor is for and the module it belongs to; its storage is followed from now on."""
        for storage, device in self._storages_of(tensor):
            block = self.blocks.get(storage._cdata) or self._add(storage, device, owner or OUTSIDE, kind=kind)
            if block is not None and (owner or kind != "input"):
                block.kind, block.owner = kind, owner

    def saved(self, tensor: Tensor, module: str) -> tuple[Any, ...]:
        """Count what autograd saves for the module that saves it, and return what `unpack_saved` gives back."""
        versions: list[tuple[Any, int]] = []
        for storage, device in self._storages_of(tensor):
            block = self.blocks.get(storage._cdata) or self._add(storage, device, module, kind="input")
            if block is not None and block.kind == "workspace":
                block.kind, block.owner = "activations", module
            ref = self._tensors_by_storage.get(storage._cdata)
            if ref is not None and (whole := ref()) is not None:
                versions.append((ref, whole._version))
        return tensor, tensor._version, versions

    def end(self) -> None:
        """Stop following; what is alive stays as it is."""
        self.ended = True
        self._refs.clear()
        self._tensors_by_storage.clear()

    def _storages_of(self, tensor: Tensor) -> Iterator[tuple[Any, torch.device]]:
        """Yield the storages of a tensor that are memory."""
        return (pair for pair in _storages(tensor) if self.counts_fakes or not is_fake(pair[0]))

    def _note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        for tensor in nested_tensors((args, kwargs)):
            for storage, device in self._storages_of(tensor):
                if storage._cdata not in self.blocks:
                    self._add(storage, device, OUTSIDE, kind="input")
        place: tuple[str, str] | None = None
        for tensor in nested_tensors(out):
            for storage, device in self._storages_of(tensor):
                block = self.blocks.get(storage._cdata)
                if block is None:
                    place = place or self.where()
                    self._add(storage, device, *place, op=str(func))
                    self._tensors_by_storage[storage._cdata] = weakref.ref(tensor)
                elif block.bytes < storage.nbytes():  # it was resized
                    self._note_death(storage._cdata, block)
                    resized = replace(block, bytes=storage.nbytes(), born=self.event, died=None, step=self.step)
                    self._follow(storage, resized)

    def _add(
        self, storage: Any, device: torch.device, module: str, phase: str = "", op: str = "", kind: str = "workspace"
    ) -> Block | None:
        unit = ROUNDED.get(device.type, 1)
        size = -(-storage.nbytes() // unit) * unit
        if not size:
            return None
        name = device.type if device.type == "cpu" else str(device)
        parts = op.split(".")  # aten.convolution.default
        short_op = parts[1] if len(parts) == 3 else op
        stack = self.stack() if self.stack is not None and phase else ()
        block = Block(size, name, module, short_op, phase, self.event, None, kind, "", self.step, stack)
        self._follow(storage, block)
        return block

    def _follow(self, storage: Any, block: Block) -> None:
        """Follow a storage until it is gone, which Python says on any thread.

        The Python side of a storage lives as long as the storage; there is no way back from it to this object.
        """
        self.event += 1
        key, tracker = storage._cdata, weakref.ref(self)

        def note(_storage: Any) -> None:
            live = tracker()
            if live is not None and not live.off:
                live._note_death(key, block)

        self.blocks[key] = block
        self._refs[key] = weakref.ref(storage, note)

    def _note_death(self, key: int, block: Block) -> None:
        if self.blocks.get(key) is block:
            del self.blocks[key]
            self._refs.pop(key, None)
            self._tensors_by_storage.pop(key, None)
            block.died = self.event
            self.event += 1
            self.dead.append(block)


def unpack_saved(saved: tuple[Any, ...]) -> Tensor:
    """Return what autograd had saved; raises RuntimeError where it was changed meanwhile.

    Autograd checks that itself, but not for what goes through hooks, and gradients would be wrong in silence.
    """
    tensor, version, versions = saved
    now = tensor._version
    for ref, before in versions:
        whole = ref()
        if whole is not None and whole._version != before:
            now, version = whole._version, before
    if now != version:
        raise RuntimeError(CHANGED.format(tensor.type(), list(tensor.shape), now, version))
    return tensor  # type: ignore[no-any-return]


def _storages(tensor: Tensor) -> Iterator[tuple[Any, torch.device]]:
    """Yield the storages of a tensor with their device: one, or those of the parts of a sparse or wrapped one."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
            yield from _storages(getattr(tensor, name))
    elif tensor.layout is torch.sparse_coo:
        yield from (*_storages(tensor._indices()), *_storages(tensor._values()))
    elif tensor.layout is torch.strided and tensor.device.type != "meta":
        try:
            yield tensor.untyped_storage(), tensor.device
        except RuntimeError:
            return  # a tensor without storage: of a functional transform, of a back end that has none


def stored_bytes(tensor: Tensor) -> float:
    """Return the bytes of a tensor's storages; 0 where it holds no memory."""
    return float(sum(storage.nbytes() for storage, _ in _storages(tensor) if not is_fake(storage)))


def is_fake(storage: Any) -> bool:
    """Return whether a storage is a compiler's fake without memory, whatever device its tensor names."""
    return bool(storage.device.type == "meta")
