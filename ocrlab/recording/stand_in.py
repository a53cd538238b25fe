"""A group of processes for one rank alone: it has its own number among `n`, and the others hold what it holds.

Every collective is answered at once from this rank's own values: a sum is `n` times them, a gathered list holds them
`n` times. What only another rank knows (a tensor that is received) is one clear error.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from ocrlab.errors import RunError
from ocrlab.flight import ranks
from ocrlab.recording import heard

NAME = "ocrlab_alone"  # of the backend that is made in place of every other one
DEVICES = ["cpu", "cuda", "xpu", "hpu", "mps"]
GIVEN = ("group_size", "group_rank", "global_ranks_in_group", "backend")  # first parameters of torch's own helper
OBJECTS = ("broadcast_object_list", "scatter_object_list")
SAME = ("AVG", "MIN", "MAX", "BAND", "BOR")  # of equal numbers these are that number


Base: Any = dist.ProcessGroup


class Group(Base):  # type: ignore[misc]
    """Takes the place of a group of processes; torch's reducer, in C++, calls the same methods as a program."""

    supports_splitting = supports_coalescing = supports_time_estimate = supports_shrinking = False

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.mine, self.many, self.backend = rank, size, NAME
        self.called, self.about = "", ""
        self.is_made = False

    def getBackendName(self) -> str:
        """Return what torch's C++ is told, which looks into a group that is called gloo or nccl."""
        return NAME

    def _get_backend_name(self) -> str:
        """Return the name of the backend that the program has asked for."""
        return self.backend

    name = _get_backend_name

    def getGroupName(self) -> str:
        """Return the name by which compiled collectives find this group."""
        return self.called

    def setGroupName(self, name: str) -> None:
        """Take that name."""
        self.called = name

    def getGroupDesc(self) -> str:
        """Return what torch says that this group is for."""
        return self.about

    def setGroupDesc(self, text: str) -> None:
        """Take that."""
        self.about = text

    @property
    def _device_types(self) -> list[torch.device]:
        """Where objects are put to be sent. While torch makes a group of Python's, it must see none."""
        return [torch.device("cpu")] if self.is_made else []

    def _get_backend(self, _device: Any) -> Any:
        return self

    def allreduce(self, tensors: Any, opts: Any = None, *_: Any, **named: Any) -> Any:
        """Reduce as many equal values as there are ranks."""
        op = named.get("op", getattr(opts, "reduceOp", opts))
        return _done([reduced(tensor, op, self.many) for tensor in _listed(tensors)])

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Any, opts: Any = None, *rest: Any, **named: Any) -> Any:
        """Reduce on one rank; what the others then hold nobody knows."""
        root = getattr(opts, "rootRank", named.get("root", opts))
        if root != self.mine:
            return _done(_listed(tensors))
        return self.allreduce(tensors, opts if hasattr(opts, "reduceOp") else next(iter(rest), None), **named)

    def broadcast(self, tensors: Any, *_: Any, **__: Any) -> Any:
        """Leave tensors as they are: the rank that sends holds the same."""
        return _done(_listed(tensors))

    def allgather(self, outputs: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        """Put this rank's tensor wherever that of a rank is wanted."""
        if isinstance(inputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        for places, value in zip(outputs, inputs, strict=True):
            for place in places:
                fill(place, value)
        return _done([place for places in outputs for place in places])

    def allgather_coalesced(self, outputs: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        """Gather several tensors: there is a list of them for each rank."""
        return self.allgather([list(places) for places in zip(*outputs, strict=True)], inputs)

    def all_gather_single(self, output: Tensor, given: Tensor, *_: Any, **__: Any) -> Any:
        """Gather into one tensor."""
        return _done([fill(output, given)])

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        """Gather several tensors, each into one."""
        return _done([fill(place, value) for place, value in zip(outputs, inputs, strict=True)])

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, **named: Any) -> Any:
        """Gather on one rank."""
        root = getattr(opts, "rootRank", named.get("root", opts))
        return self.allgather(outputs, inputs) if root == self.mine else _done(_listed(inputs))

    def gather_single(self, output: Tensor, given: Tensor, opts: Any = None) -> Any:
        """Gather into one tensor on one rank."""
        return _done([fill(output, given) if getattr(opts, "rootRank", opts) == self.mine else given])

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, **named: Any) -> Any:
        """Hand out what this rank holds; what another one hands out is not known here, and is nothing."""
        if isinstance(outputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        if getattr(opts, "rootRank", named.get("root", opts)) == self.mine:
            fill(outputs[0], inputs[0][self.mine])
        else:
            outputs[0].detach().zero_()  # it may have been made of whatever lay in memory
        return _done(outputs)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, **named: Any) -> Any:
        """Reduce lists of tensors, of which each rank gets its own."""
        if isinstance(outputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        op = named.get("op", getattr(opts, "reduceOp", opts))
        pairs = zip(outputs, inputs, strict=True)
        return _done([reduced(fill(place, values[self.mine]), op, self.many) for place, values in pairs])

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = None) -> Any:
        """Reduce one tensor, of which each rank gets its part."""
        return self.reduce_scatter([output], [given.reshape(-1).chunk(self.many)], opts)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Reduce several tensors, of which each rank gets its parts."""
        return self.reduce_scatter(outputs, [given.reshape(-1).chunk(self.many) for given in inputs], opts)

    def all_to_all_single(self, output: Tensor, given: Tensor, out: Any = (), into: Any = (), *_: Any) -> Any:
        """Exchange parts: every rank sends what this one would send to itself."""
        mine = _parts(given, into, self.many)[self.mine]
        for place in _parts(output.detach(), out, self.many):
            fill(place, mine)
        return _done([output])

    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], *_: Any, **__: Any) -> Any:
        """Exchange tensors: every rank sends what this one would send to itself."""
        return _done([fill(place, inputs[self.mine]) for place in outputs])

    # What these are called by older versions of torch, and by those that keep both names.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    gather_into_tensor = gather_single
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def send(self, _tensors: Any, to: int = -1, *_: Any) -> NoReturn:
        """Raise RunError: nobody is there."""
        raise _nobody(self, "sends a tensor to", to)

    def recv(self, _tensors: Any, by: int = -1, *_: Any) -> NoReturn:
        """Raise RunError: nobody is there."""
        raise _nobody(self, "waits for a tensor of", by)

    def recv_anysource(self, _tensors: Any, *_: Any) -> NoReturn:
        """Raise RunError: nobody is there."""
        raise _nobody(self, "waits for a tensor of", -1)

    def barrier(self, *_: Any, **__: Any) -> Any:
        """Wait for nobody."""
        return _done([])

    def monitored_barrier(self, *_: Any, **__: Any) -> None:
        """Wait for nobody."""

    def _end_coalescing(self, _device: Any = None) -> Any:
        return _done([])

    shutdown = abort = set_timeout = _start_coalescing = _wait_for_pending_works = monitored_barrier


def _nobody(group: Group, does: str, rank: int) -> RunError:
    other = "any rank" if rank < 0 else f"rank {rank} of its group"
    return RunError(f"Rank {group.mine} of {group.many} {does} {other}, and {ranks.HOLDS}")


def reduced(tensor: Tensor, op: Any, many: int) -> Tensor:
    """Change a tensor into what `many` equal ones are reduced to; `op` None is the sum. Returns it."""
    kind = getattr(op, "op", op)
    name = str(getattr(kind, "name", kind)) if kind is not None else "SUM"
    held = tensor.detach()
    with torch.no_grad():
        if name == "PREMUL_SUM":
            held.mul_(op.factor).mul_(many)
        elif name == "BXOR":
            held.mul_(many % 2)
        elif name not in SAME and held.dtype != torch.bool:  # any true is true, all true are true
            held.pow_(many) if name == "PRODUCT" else held.mul_(many)
    return tensor


def fill(place: Tensor, value: Tensor) -> Tensor:
    """Write a value into its place, as often as it goes into a larger one, and what fits of it into a smaller one."""
    held, value = place.detach(), value.detach()
    if held.shape == value.shape:
        held.copy_(value)
    elif held.numel() and value.numel():
        flat = value.reshape(-1)
        held.copy_(flat.repeat(-(-held.numel() // len(flat)))[: held.numel()].view(held.shape))
    return place


def _parts(tensor: Tensor, sizes: Sequence[int], many: int) -> Sequence[Tensor]:
    """Return the rows of a tensor that belong to each rank; no sizes: as many to each."""
    return tensor.split(list(sizes)) if len(sizes) else tensor.split(max(1, len(tensor) // many))


def _listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _done(tensors: Sequence[Tensor]) -> Any:
    """Return the handle of a collective that is over."""
    future: Any = torch.futures.Future()
    future.set_result(list(tensors))
    return torch._C._distributed_c10d._create_work_from_future(future)


def install(rank: int, size: int) -> bool:
    """Have every group that is asked for be a `Group`, of whatever backend; False where this torch is another one.

    This process is `rank` of `size` where nobody says another.
    """
    real = getattr(c10d, "_new_process_group_helper", None)
    if real is None or tuple(inspect.signature(real).parameters)[: len(GIVEN)] != GIVEN:
        return False
    if not hasattr(torch._C._distributed_c10d, "_create_work_from_future"):
        return False
    dist.Backend.register_backend(NAME, lambda _store, rank, size, _timeout: Group(rank, size), devices=DEVICES)
    c10d._new_process_group_helper = _made_by(real, (rank, size))
    c10d._store_based_barrier = lambda *_, **__: None  # type: ignore[assignment]
    for name in OBJECTS:
        sends = _kept(getattr(c10d, name))
        for module in (dist, c10d):
            setattr(module, name, sends)
    return True


def _kept(real: Callable[..., Any]) -> Callable[..., Any]:
    """Return what leaves a list of objects as it is where another rank sends them, of which not even the size is known
    here.
    """
    signature = inspect.signature(real)

    @functools.wraps(real)
    def made(*args: Any, **named: Any) -> Any:
        told = signature.bind(*args, **named)
        told.apply_defaults()
        group, group_src = told.arguments.get("group") or c10d._get_default_group(), told.arguments.get("group_src")
        src = told.arguments.get("src") if group_src is None else c10d.get_global_rank(group, group_src)
        if isinstance(group, Group) and (src or 0) != dist.get_rank() and not heard.sizes():
            return None
        return real(*args, **named)

    return made


def _made_by(real: Callable[..., Any], mine: tuple[int, int]) -> Callable[..., Any]:
    """Return what makes a group as torch does, of ours: it says that it is of the backend that was asked for."""

    @functools.wraps(real)
    def made(size: int, rank: int, members: Any, backend: str, *rest: Any, **named: Any) -> Any:
        named |= {name: None for name in ("device_id", "backend_options", "pg_options") if name in named}
        if size < 0:  # it would ask MPI
            rank, size = mine
        group, store = real(size, rank, members, dist.Backend(NAME), *rest, **named)
        if isinstance(group, Group):
            by_device = c10d.BackendConfig(dist.Backend(backend)).get_device_backend_map()
            where = "cuda" if torch.cuda.is_available() and "cuda" in by_device else "cpu"
            group.backend = by_device.get(where) or next(iter(by_device.values()), backend)
            group.is_made = True
            c10d._world.pg_map[group] = (dist.Backend(backend), store)
        return group, store

    return made
