"""What fits instead, as a line of settings: in the config of `ocrlab train`, the environment, or one's own code."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ocrlab.debug.diagnosis.oom_message import size_text
from ocrlab.debug.memory.oom_inputs import OomRun
from ocrlab.debug.memory.oom_kinds import OomKind

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


def find_remedy(run: OomRun, kind: OomKind) -> Remedy:
    """Return what would let the run through; empty where memory did not run out."""
    kinds = {
        "capacity": _smaller,
        "fragmentation": lambda case: Remedy((), EXPANDABLE, "Pad batches to a few sizes, so that blocks fit again"),
        "another process": _elsewhere,
        "leak": _leak,
        "outside the cache": lambda case: Remedy((), SMALL_WORKSPACE, "Fewer NCCL communicators, streams and models"),
        "pinned memory": lambda case: Remedy(
            *_workers(case), do="DataLoader(pin_memory=False), or fewer batches ahead"
        ),
        "WSL limit": lambda case: Remedy(do="Raise memory= in .wslconfig, or DataLoader(pin_memory=False)"),
        "absurd size": _bounds,
        "killed by the host": _host,
        "control group": _host,
        "refused by the host": _host,
        "shared memory": lambda case: Remedy(
            ("runtime.workers=0",) if case.config else (),
            {},
            "docker run --shm-size=8g or --ipc=host; or fewer workers",
        ),
    }
    return kinds[kind.kind](run) if kind.kind in kinds else Remedy()


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


def _smaller(run: OomRun) -> Remedy:
    message, share = run.message, 0.5
    if message and message.total and message.ours and message.request:
        limit = min(message.total - max((message.foreign or 0), 0), message.allowed or message.total)
        share = min(0.99, max(0.1, ROOM * limit / (message.ours + message.request)))
    settings = _less(run, share)
    do = "A smaller batch with more accumulation, bf16, a smaller crop; `ocrlab memory fit` measures what fits"
    return Remedy(settings, {}, "" if settings else do)


def _less(run: OomRun, share: float = 0.5) -> tuple[str, ...]:
    """Return a smaller batch; of a batch of one what costs time, and then only what costs what is learned."""
    if run.config.get("batch_size") == 1 and run.config.get(AGAIN) is False:
        return (f"{AGAIN}=true",)
    return smaller_batch(run.config, share)


def _elsewhere(run: OomRun) -> Remedy:
    message = run.message
    pids = sorted(
        (message.others or {}) if message else {}, key=lambda pid: -(message.others or {})[pid] if message else 0
    )
    free = _freest(run, message.device if message else None)
    who = f"End process {' '.join(map(str, pids[:4]))}" if pids else "End who holds the card: `ocrlab memory watch`"
    if free is not None:
        return Remedy((), {"CUDA_VISIBLE_DEVICES": str(free)}, who)
    return Remedy(do=f"{who}; or choose a free card with CUDA_VISIBLE_DEVICES")


def _freest(run: OomRun, busy: int | None) -> int | None:
    """Return the card with most free memory at the failure, where it is another one and has enough."""
    cards = (run.facts.get("gpus") or {}).get("cards") or []
    needed = ((run.message.ours or 0) + (run.message.request or 0)) if run.message else 0
    others = [(card.get("free") or 0, index) for index, card in enumerate(cards) if index != busy]
    best = max(others, default=(0, None))
    return best[1] if best[0] > needed else None


def _leak(run: OomRun) -> Remedy:
    if run.leak is not None:
        return Remedy(do=run.leak.text.rpartition(". ")[2] or run.leak.text)
    do = "ocrlab.debug.watch_leaks(model) around the loop names the line that keeps it"
    if run.cause.startswith("gpumem."):
        do += "; keep .item() or .detach(), and torch.no_grad() in validation"
    return Remedy(do=do)


def _bounds(run: OomRun) -> Remedy:
    where = f" at {run.place.file.rpartition('/')[2]}:{run.place.line} `{run.place.text}`" if run.place else ""
    return Remedy(do=f"Correct the shape{where}; no batch size mends it")


def _host(run: OomRun) -> Remedy:
    settings, _ = _workers(run)
    settings = settings or _less(run)
    limit, address = run.limit, run.facts.get("address_space_bytes")
    if address:
        return Remedy(
            settings, {}, "" if settings else f"Raise ulimit -v ({size_text(address)}), or ask for less at a time"
        )
    more = f"more than {size_text(limit)} for the container" if limit else "a larger memory limit"
    return Remedy(settings, {}, "" if settings else f"Fewer workers and a smaller batch or cache, or {more}")


def _workers(run: OomRun) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return fewer loader workers, where the config sets more than one."""
    workers = run.config.get("runtime.workers")
    if isinstance(workers, int) and workers > 1:
        return (f"runtime.workers={workers // 2}",), {}
    return ("runtime.workers=0",) if workers == 1 else (), {}
