"""A DataLoader with two workers, started by fork and by spawn: do batches come back, and whole?

Only ever called in a child, by a Python from 3.8 on. What a spawned worker unpickles must be found by name there, so
the dataset lives in a module of its own that is written nowhere: torch's TensorDataset.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from typing import Any

ITEMS, SIDE, WORKERS = 8, 64, 2


def batches(method: str) -> Iterator[dict[str, Any]]:
    """Send every sample through two workers; yield how long that took, and whether each came back unchanged."""
    yield {"at": "import torch"}
    torch: Any = importlib.import_module("torch")
    data: Any = importlib.import_module("torch.utils.data")
    whole = torch.arange(ITEMS * SIDE * SIDE, dtype=torch.float32).reshape(ITEMS, SIDE, SIDE)
    loader = data.DataLoader(
        data.TensorDataset(whole), batch_size=2, num_workers=WORKERS, multiprocessing_context=method
    )
    yield {"at": f"starting {WORKERS} workers by {method}"}
    began, came = time.perf_counter(), []
    for number, (batch,) in enumerate(loader):
        came.append(batch)
        yield {"at": f"batch {number + 1} of {ITEMS // 2}"}
    seconds = time.perf_counter() - began
    yield {
        "method": method,
        "seconds": seconds,
        "same": bool(torch.equal(torch.cat(came), whole)),
        "batches": len(came),
    }
