"""Several processes that train together over gloo, and do not."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ocrlab.fault_lab.fault import Fault
from ocrlab.fault_lab.setup import torch

SHORT = datetime.timedelta(seconds=4)


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def launch(rank_of: Callable[..., None], *args: Any) -> None:
    """Start two ranks, as torchrun does, and wait for both."""
    import torch.multiprocessing as processes

    port = free_port()
    method = multiprocessing.get_start_method()
    processes.start_processes(rank_of, args=(port, *args), nprocs=2, start_method=method)


def connect(rank: int, port: int, timeout: datetime.timedelta = SHORT, world: int = 2) -> Any:
    """Join the group and return torch.distributed."""
    import torch.distributed as group

    address = f"tcp://127.0.0.1:{port}"
    group.init_process_group("gloo", init_method=address, rank=rank, world_size=world, timeout=timeout)
    return group


def train_rank(rank: int, port: int) -> None:
    """One rank has a page less."""
    group = connect(rank, port)
    for step in range(6 if rank == 0 else 4):
        group.all_reduce(torch.ones(4))
        print(f"rank {rank} step {step}", flush=True)
    time.sleep(8 if rank else 0)


def train_rank_patiently(rank: int, port: int) -> None:
    group = connect(rank, port, datetime.timedelta(minutes=30))
    for step in range(6):
        group.all_reduce(torch.ones(4))
        print(f"rank {rank} step {step}", flush=True)
        if step == 3 and rank == 1:
            group.barrier()


def train_rank_until(rank: int, port: int) -> None:
    group = connect(rank, port)
    for step in range(6):
        if step == 3 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        group.all_reduce(torch.ones(4))


def train_rank_on_pages(rank: int, port: int) -> None:
    group = connect(rank, port)
    for step in range(6):
        if step == 3 and rank == 1:
            torch.nn.functional.cross_entropy(torch.randn(2, 5), torch.tensor([1, 5]))
        group.all_reduce(torch.ones(4))


def train_beside() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        connect(0, other.getsockname()[1], world=1)


def train_with_missing() -> None:
    connect(0, free_port(), world=2)


def train_alone() -> None:
    import torch.distributed as group

    group.init_process_group("gloo")


def train_on_interface() -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "ib7"
    connect(0, 0, world=1)


def train_heads(rank: int, port: int) -> None:
    connect(rank, port)

    class Detector(torch.nn.Module):
        """Two heads, of which the forward pass uses one."""

        def __init__(self) -> None:
            super().__init__()
            self.probability, self.threshold = torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)

        def forward(self, page: Any) -> Any:
            return self.probability(page)

    net = torch.nn.parallel.DistributedDataParallel(Detector())
    for _ in range(2):
        net(torch.rand(4, 8)).sum().backward()


DESYNC, MISCONFIG, NETWORK = ("dist.timeout_desync",), ("dist.misconfig",), ("dist.network",)
INDEX = ("data.index_range",)
FAULTS = (
    Fault("uneven_ranks", "one rank has fewer steps", "failed", DESYNC, partial(launch, train_rank)),
    Fault("diverged_ranks", "a barrier on one rank only", "hung", DESYNC, partial(launch, train_rank_patiently)),
    Fault("killed_rank", "SIGKILL to a rank", "failed", (*DESYNC, "ext.signal"), partial(launch, train_rank_until)),
    Fault("failed_rank", "a label error on one rank", "failed", INDEX, partial(launch, train_rank_on_pages)),
    Fault("port_taken", "a port that is in use", "failed", ("dist.port",), train_beside),
    Fault("missing_rank", "a rank that never starts", "failed", (*MISCONFIG, *DESYNC), train_with_missing),
    Fault("no_rank", "no launcher", "failed", MISCONFIG, train_alone),
    Fault("interface", "an interface that is not there", "failed", NETWORK, train_on_interface),
    Fault("unused_head", "a head outside of the loss", "failed", ("dist.unused_params",), partial(launch, train_heads)),
)
