"""A leak as it is reported: how much a step, how sure, which line holds it, which created it; plain data, no torch."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20
SURE = 0.95  # confidence from which growth is reported
FIXES = {
    "graph": "Keep the number, not the tensor: .item(), or .detach() where it must stay a tensor",
    "evaluation": "Run validation inside torch.no_grad() or torch.inference_mode()",
    "tensors": "Keep .detach().cpu() of what is needed, or process it now and drop it",
    "hook": "Let the hook keep .detach() of the last call only, and remove it when it is done: handle.remove()",
    "objects": "Give it a bound: a largest length, or functools.lru_cache(maxsize=...)",
    "figures": "Close each figure when it is saved: plt.close(figure)",
    "worker": "Bound the cache, or keep it on disk: each worker has a cache of its own",
}


@dataclass(frozen=True)
class Leak:
    """What grows: MiB a step (`low` to `high` with 95 %), how sure it is (0..1), what holds it, and on which line.

    `location` is the line that lets it grow ("train.py:42"), `code` its text, `origin` the line that created it.
    """

    kind: str
    mib_per_step: float
    low: float
    high: float
    confidence: float
    holder: str
    location: str = ""
    code: str = ""
    origin: str = ""
    steps: int = 0
    fix: str = ""

    def __str__(self) -> str:
        place = f" at {self.location}" if self.location else ""
        text = f"{self.mib_per_step:.2f} MiB a step are kept by {self.holder}{place}"
        text += f": {self.code}" if self.code else ""
        text += f" (created at {self.origin})" if self.origin and self.origin != self.location else ""
        return f"{text}. {self.fix}."
