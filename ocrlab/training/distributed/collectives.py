"""What the ranks of one training do together, over gloo: meet, agree, add up; each does nothing for a rank alone.

What is computed is Lightning's and torch's DDP. Here is what these leave open: one run folder, one choice of number
format, a stop at the same step, statistics and figures that are the same on every rank.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as group
from lightning.fabric.plugins.environments import ClusterEnvironment, SLURMEnvironment, TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

from ocrlab.config.schema import Config
from ocrlab.errors import ConfigError, DataError, OcrlabError, RunError
from ocrlab.evaluation.metrics.page_scores import COLUMNS, SIZES, Running
from ocrlab.hardware import nvidia_driver
from ocrlab.run_folder.launcher import RankRecord, Ranks

TIMEOUT = timedelta(minutes=30)  # of one collective: rank 0 may work alone for a while, and the watcher is faster
LAST_WORDS = 10.0  # seconds for the tracker of a rank that fails: torchrun kills after 30 whoever is still there
PATIENCE = 15.0  # seconds after which a message names the ranks that are missing
# NCCL's own record of collectives, written where it times out; TORCH_FR_ is the newer name of one of them.
RECORD = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}

# What DDP calls the buffers that it sends before each forward pass; torch 2.15 has given it another name.
WITHOUT_BUFFERS = "broadcast_buffers"
if "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters:
    WITHOUT_BUFFERS = "forward_sync_buffers"


@contextlib.contextmanager
def join_ranks(ranks: Ranks) -> Iterator[RankRecord]:
    """Join the other ranks around a `with` block and leave them; how this rank ended is written down before it goes."""
    member = RankRecord(ranks)
    member.begin(gpu=nvidia_driver.present(Path("/")))
    try:
        meet_ranks(ranks)
        yield member
        if ranks.several:
            group.barrier()  # whoever leaves first would be missed by the others
    except BaseException as error:
        stopped = isinstance(error, SystemExit | KeyboardInterrupt)
        member.end("stopped" if stopped else "failed", error=error)
        raise
    member.end("success")
    if ranks.several:
        group.destroy_process_group()


def meet_ranks(ranks: Ranks) -> None:
    """Join the group of all ranks; raises RunError where the others do not come."""
    if not ranks.several or group.is_initialized():
        return
    if ranks.nodes == 1 and sys.platform == "linux":
        # By default gloo takes the interface of the host's name, which without a network resolves to nothing, or to
        # the address of a tunnel. Ranks on one machine meet on the one interface that every machine has.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    environment = launcher_environment(ranks)
    where = f"{environment.main_address}:{environment.main_port}"
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = where.rsplit(":", 1)
    text = f"ocrlab: rank {ranks.rank} waits at {where} for all {ranks.world} ranks of {ranks.launcher}"
    timer = threading.Timer(PATIENCE, print, [text], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        group.init_process_group("gloo", rank=ranks.rank, world_size=ranks.world, timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise RunError(
            f"Rank {ranks.rank} of {ranks.world} did not reach the others at {where}",
            got=str(error).partition("\n")[0],
            need="every rank started, and the port of rank 0's machine open for all",
            do="Name the network with GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME where a machine has several",
        ) from error
    finally:
        timer.cancel()


def launcher_environment(ranks: Ranks) -> ClusterEnvironment:
    """Return Lightning's reader of the launcher's environment; requeueing is the business of the job's owner."""
    if ranks.launcher == "torchrun":
        return TorchElasticEnvironment()
    os.environ.setdefault("SLURM_NTASKS_PER_NODE", str(ranks.on_node))  # Lightning wants it beside --ntasks
    return SLURMEnvironment(auto_requeue=False)


def strategy(ranks: Ranks, accelerator: str, folder: Path) -> dict[str, Any]:
    """Return what lightning.Trainer needs to know about the ranks; raises ConfigError for fewer GPUs than ranks.

    BatchNorm's buffers are averaged once a step (`mean_buffers`) and not sent by DDP before every forward pass.
    """
    if not ranks.several:
        return {"devices": 1}
    more: dict[str, Any] = {WITHOUT_BUFFERS: False}
    if accelerator == "cuda":
        cards = torch.cuda.device_count()
        if cards < ranks.on_node:
            raise ConfigError(
                "There are more ranks on this machine than GPUs",
                got=f"{ranks.on_node} ranks and {cards} visible GPUs",
                need="a GPU for each rank",
                do="Show each task all GPUs: --gpus-per-node in place of --gpus-per-task and --gpu-bind"
                if ranks.launcher == "srun"
                else "Use --nproc of the number of GPUs, or trainer.accelerator=cpu",
            )
        torch.cuda.set_device(ranks.local)
        for name, value in RECORD.items():
            os.environ.setdefault(name, value)
        os.environ.setdefault("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", str(folder / "flight" / "nccl-rank-"))
        more["process_group"] = group.new_group(backend="nccl", timeout=TIMEOUT)  # without: gloo's, of all ranks
    ddp = DDPStrategy(gradient_as_bucket_view=True, timeout=TIMEOUT, **more)
    ddp.cluster_environment = launcher_environment(ranks)
    return {"devices": ranks.on_node, "num_nodes": ranks.nodes, "strategy": ddp}


def strategy_group(strategy: Any) -> Any:
    """Return the process group of a strategy, None for gloo's group of all ranks and for a rank alone."""
    return getattr(strategy, "_ddp_kwargs", {}).get("process_group")


def disable_lightning_signals(trainer: Any, ranks: Ranks) -> None:
    """Keep Lightning from its own way of stopping several ranks.

    It sends a collective from inside its signal handler, where another one may be under way, and one more before each
    batch, which it waits for; `StopAgreement` does the same without waiting.
    """
    loop = trainer.fit_loop.epoch_loop
    if ranks.several and hasattr(loop, "_broadcast_sigterm_tensor"):
        loop._broadcast_sigterm_tensor = lambda: None


def broadcast(ranks: Ranks, value: Any) -> Any:
    """Return what rank 0 has given for `value`, on every rank."""
    if not ranks.several:
        return value
    values = [value if ranks.first else None]
    group.broadcast_object_list(values, src=0)
    return values[0]


def gather(ranks: Ranks, value: Any) -> list[Any]:
    """Return what every rank has given, by rank."""
    if not ranks.several:
        return [value]
    values: list[Any] = [None] * ranks.world
    group.all_gather_object(values, value)
    return values


def mean_over_ranks(ranks: Ranks, values: Sequence[float]) -> list[float]:
    """Return the mean over the ranks of each number."""
    if not ranks.several:
        return list(values)
    sums = torch.tensor(values, dtype=torch.float64)
    group.all_reduce(sums)
    return [value / ranks.world for value in sums.tolist()]


@torch.no_grad()
def mean_buffers(ranks: Ranks, model: torch.nn.Module, within: Any = None) -> None:
    """Put the mean over the ranks into each float buffer of `model`: BatchNorm's running mean and variance.

    They then are the same on all ranks, so that averaged weights, validation and a resume are, too.
    """
    buffers = [buffer for buffer in model.buffers() if buffer.dtype.is_floating_point]
    if not ranks.several or not buffers:
        return
    flat = torch.cat([buffer.flatten() for buffer in buffers])
    group.all_reduce(flat, group=within)
    flat /= ranks.world
    for buffer, mine in zip(buffers, flat.split([b.numel() for b in buffers]), strict=True):
        buffer.copy_(mine.view_as(buffer))


def require_same(ranks: Ranks, what: str, value: object) -> None:
    """Raise DataError on every rank where this one's `value` is not that of all, naming those that differ."""
    values = gather(ranks, value)
    majority = max(values, key=values.count)
    odd = next((rank for rank, other in enumerate(values) if other != majority), None)
    if odd is not None:
        got, need = f"{values[odd]} on rank {odd}", f"{majority}, as on {values.count(majority)} others"
        raise about_rank(odd, DataError(f"Rank {odd} has different {what}", got=got, need=need))


def about_rank(rank: int, error: OcrlabError) -> OcrlabError:
    """Return an error that several ranks raise, marked for their records as one about this rank."""
    error.rank = rank  # type: ignore[attr-defined]  # see run_folder/launcher.py
    return error


def page_share(count: int, ranks: Ranks) -> list[int | None]:
    """Return the pages of `count` that are this rank's, as many on each: None fills the last turn up."""
    rows = -(-count // ranks.world)
    return [page if page < count else None for page in range(ranks.rank, rows * ranks.world, ranks.world)]


def sum_scores(ranks: Ranks, judged: Mapping[int, NDArray[np.float64]], count: int) -> Running:
    """Return the figures of `count` pages, each judged by one rank, added up in the order of the pages.

    Not sums of sums: so every bit is that of a process alone. Raises RunError for a page that is missing or was judged
    twice.
    """
    table = np.zeros((count, len(SIZES), len(COLUMNS) + 1))
    for page, counts in judged.items():
        table[page, :, :-1] = counts
        table[page, 0, -1] = 1
    if ranks.several:
        summed = torch.from_numpy(table)
        group.all_reduce(summed)  # one rank has numbers and the others zeros: exact
    times = table[:, 0, -1]
    if (times != 1).any():
        page = int(np.flatnonzero(times != 1)[0])
        raise RunError("Some pages were validated twice or not at all", got=f"page {page} {int(times[page])} times")
    running = Running()
    for row in table:
        running.state += row
    return running


def ranks_text(config: Config, ranks: Ranks) -> str:
    """Return the log line about the ranks: how many, and how large that makes a batch."""
    accumulate, batch = config.trainer.accumulate_grad_batches, config.batch_size
    on = f" on {ranks.nodes} machines" if ranks.nodes > 1 else ""
    return (
        f"{ranks.world} ranks{on}: {ranks.world} x batch_size {batch} x accumulate_grad_batches {accumulate} = "
        f"{ranks.world * batch * accumulate} crops for each optimizer step; optim.lr stays {config.optim.lr:g}"
    )
