"""What fits instead, as a line of settings: in the config of `ocrlab train`, the environment, or one's own code."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ocrlab.debug.diagnosis.oom_message import size_text
from ocrlab.debug.memory.oom_inputs import Known
from ocrlab.debug.memory.oom_kinds import Split

ROOM = 0.9  # of the limit that a proposal may use
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
AGAIN = "runtime.activation_checkpointing"
SMALL_WORKSPACE = {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}  # cuBLAS: eight of 16 KiB in place of megabytes for each stream


@dataclass(frozen=True)
class Remedy:
    """What to change: `settings` of `ocrlab train`, `environment` variables, and a sentence for everything else."""

    settings: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    do: str = ""

    @property
    def line(self) -> str:
        """The settings as they are typed."""
        return " ".join([*(f"{name}={value}" for name, value in self.environment.items()), *self.settings])


def remedy(known: Known, found: Split) -> Remedy:
    """Return what would let the run through; empty where memory did not run out."""
    kinds = {
        "capacity": _smaller,
        "fragmentation": lambda one: Remedy((), EXPANDABLE, "Pad batches to a few sizes, so that blocks fit again"),
        "another process": _elsewhere,
        "leak": _leak,
        "outside the cache": lambda one: Remedy((), SMALL_WORKSPACE, "Fewer NCCL communicators, streams and models"),
        "pinned memory": lambda one: Remedy(*_workers(one), do="DataLoader(pin_memory=False), or fewer batches ahead"),
        "WSL limit": lambda one: Remedy(do="Raise memory= in .wslconfig, or DataLoader(pin_memory=False)"),
        "absurd size": _bounds,
        "killed by the host": _host,
        "control group": _host,
        "refused by the host": _host,
        "shared memory": lambda one: Remedy(
            ("runtime.workers=0",) if one.config else (), {}, "docker run --shm-size=8g or --ipc=host; or fewer workers"
        ),
    }
    return kinds[found.kind](known) if found.kind in kinds else Remedy()


def smaller_batch(config: dict[str, Any], share: float = 0.5) -> tuple[str, ...]:
    """Return settings with at most `share` of the batch and as many steps accumulated for the same effective batch.

    Where the batch is one already, a smaller crop.
    """
    batch = int(config.get("batch_size") or 0)
    if batch < 1:
        return ()
    steps = int(config.get("trainer.accumulate_grad_batches") or 1)
    most = max(1, math.floor(batch * share))
    if batch == 1:
        crop = int(config.get("crop") or 512)
        side = max(64, int(crop * math.sqrt(min(share, 0.75))) // 32 * 32)
        return (f"crop={side}",) if side < crop else ()
    fits = max(size for size in range(1, most + 1) if batch * steps % size == 0)
    return (f"batch_size={fits}", f"trainer.accumulate_grad_batches={batch * steps // fits}")


def _smaller(known: Known) -> Remedy:
    told, share = known.message, 0.5
    if told and told.total and told.ours and told.request:
        limit = min(told.total - max((told.foreign or 0), 0), told.allowed or told.total)
        share = min(0.99, max(0.1, ROOM * limit / (told.ours + told.request)))
    settings = _less(known, share)
    do = "A smaller batch with more accumulation, bf16, a smaller crop; `ocrlab memory fit` measures what fits"
    return Remedy(settings, {}, "" if settings else do)


def _less(known: Known, share: float = 0.5) -> tuple[str, ...]:
    """Return a smaller batch; of a batch of one what costs time, and then only what costs what is learned."""
    if known.config.get("batch_size") == 1 and known.config.get(AGAIN) is False:
        return (f"{AGAIN}=true",)
    return smaller_batch(known.config, share)


def _elsewhere(known: Known) -> Remedy:
    told = known.message
    pids = sorted((told.others or {}) if told else {}, key=lambda pid: -(told.others or {})[pid] if told else 0)
    free = _freest(known, told.device if told else None)
    who = f"End process {' '.join(map(str, pids[:4]))}" if pids else "End who holds the card: `ocrlab memory watch`"
    if free is not None:
        return Remedy((), {"CUDA_VISIBLE_DEVICES": str(free)}, who)
    return Remedy(do=f"{who}; or choose a free card with CUDA_VISIBLE_DEVICES")


def _freest(known: Known, busy: int | None) -> int | None:
    """Return the card with most free memory at the failure, where it is another one and has enough."""
    cards = (known.facts.get("gpus") or {}).get("cards") or []
    needed = ((known.message.ours or 0) + (known.message.request or 0)) if known.message else 0
    others = [(card.get("free") or 0, index) for index, card in enumerate(cards) if index != busy]
    best = max(others, default=(0, None))
    return best[1] if best[0] > needed else None


def _leak(known: Known) -> Remedy:
    if known.leak is not None:
        return Remedy(do=known.leak.text.rpartition(". ")[2] or known.leak.text)
    do = "ocrlab.debug.watch_leaks(model) around the loop names the line that keeps it"
    if known.cause.startswith("gpumem."):
        do += "; keep .item() or .detach(), and torch.no_grad() in validation"
    return Remedy(do=do)


def _bounds(known: Known) -> Remedy:
    where = f" at {known.place.file.rpartition('/')[2]}:{known.place.line} `{known.place.text}`" if known.place else ""
    return Remedy(do=f"Correct the shape{where}; no batch size mends it")


def _host(known: Known) -> Remedy:
    settings, _ = _workers(known)
    settings = settings or _less(known)
    limit, address = known.limit, known.facts.get("address_space_bytes")
    if address:
        return Remedy(
            settings, {}, "" if settings else f"Raise ulimit -v ({size_text(address)}), or ask for less at a time"
        )
    more = f"more than {size_text(limit)} for the container" if limit else "a larger memory limit"
    return Remedy(settings, {}, "" if settings else f"Fewer workers and a smaller batch or cache, or {more}")


def _workers(known: Known) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return fewer loader workers, where the config sets more than one."""
    workers = known.config.get("runtime.workers")
    if isinstance(workers, int) and workers > 1:
        return (f"runtime.workers={workers // 2}",), {}
    return ("runtime.workers=0",) if workers == 1 else (), {}
