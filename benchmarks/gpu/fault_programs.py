"""The programs of stage B: `python fault_programs.py NAME FOLDER [--dry-run]` trains until its fault, as a user would.

The fault belongs to one sample, scan-13.png, and to one module, `fusion`. In a dry run the CPU raises what torch raises
on a card, word for word, so that everything around the fault is tried.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import ocrlab

DRY_RUN = "--dry-run" in sys.argv
DEVICE = "cpu" if DRY_RUN else "cuda"
PAGES, BATCH, BAD = 24, 4, 13
ADVICE = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be"
    " incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable"
    " device-side assertions.\n"
)
MESSAGES = {  # what torch raises, for the dry run
    "illegal": "CUDA error: an illegal memory access was encountered" + ADVICE,
    "triton": "CUDA error: an illegal memory access was encountered" + ADVICE,
    "misaligned": "CUDA error: misaligned address" + ADVICE,
    "trap": "CUDA error: unspecified launch failure" + ADVICE,
    "resources": "CUDA error: invalid configuration argument" + ADVICE,
    "assert": "CUDA error: device-side assert triggered" + ADVICE,
    "race": "CSAN detected a possible data race on tensor with data pointer 139719969079296",
}
OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 40.00 GiB. GPU 0 has a total capacity of 79.18 GiB of which 15.31 GiB is"
    " free. {other}Including non-PyTorch memory, this process has {own} GiB memory in use. Of the allocated memory"
    " {allocated} GiB is allocated by PyTorch, and {reserved} GiB is reserved by PyTorch but unallocated."
)


class Pages(Dataset[dict[str, Any]]):
    """Random pages with a name and the number of their source, which is out of range for the bad one."""

    def __len__(self) -> int:
        return PAGES

    def __getitem__(self, index: int) -> dict[str, Any]:
        pixels = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(index))
        return {"pixels": pixels, "source": 999_999 if index == BAD else index % 8, "name": f"scan-{index}.png"}


class CudaKernel(torch.autograd.Function):
    """One of the kernels of kernels.cu, launched without a check, as a user's extension does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, hit: bool, name: str) -> Tensor:
        y = x.clone()
        if DRY_RUN:
            if hit and name == "endless":
                time.sleep(1e6)
            elif hit:
                raise RuntimeError(MESSAGES[name])
            return y
        if name == "triton":
            launch_triton(y, hit)
            return y
        library = ctypes.CDLL(os.environ["FAULT_KERNELS"])
        stream = torch.cuda.current_stream().cuda_stream
        getattr(library, f"launch_{name}")(ctypes.c_void_p(y.data_ptr()), int(hit), ctypes.c_void_p(stream))
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None, None


def launch_triton(x: Tensor, hit: bool) -> None:
    """Add one to 64 numbers by Triton; for the bad sample far outside of the tensor."""
    import triton_kernel

    triton_kernel.increment[(1,)](x, (1 << 38) if hit else 0, 64)


class Fusion(nn.Module):
    """The module with the fault."""

    context_is_dead = False

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.mix = nn.Conv2d(16, 16, 3, padding=1)
        self.table = nn.Embedding(8, 16)

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        hit = bool((source > 7).any())
        if self.fault in ("assert", "sticky"):
            if DRY_RUN and (hit or Fusion.context_is_dead):
                Fusion.context_is_dead = True  # as on a card: every later call fails, too
                raise RuntimeError(MESSAGES["assert"])
            x = x + self.table(source)[:, :, None, None]  # on a card the kernel asserts that 999,999 < 8
        elif self.fault == "nan":
            with torch.autocast(DEVICE, torch.bfloat16):
                x = self.mix(x * (1e38 if hit else 1.0)) * (1e3 if hit else 1.0)
            x = x.float()
        elif self.fault in (*MESSAGES, "endless"):
            x = CudaKernel.apply(x, hit, self.fault)
        return self.mix(x) if self.fault != "nan" else x


class Net(nn.Module):
    """A small detector: stem, fusion, head."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2, 1)
        self.fusion = Fusion(fault)
        self.head = nn.Conv2d(16, 1, 1)

    def forward(self, pixels: Tensor, source: Tensor) -> Tensor:
        return self.head(self.fusion(self.stem(pixels), source))


def train(fault: str, folder: Path) -> None:
    """Train with a recorder until the bad sample comes; `sticky` skips a batch that failed, as some loops do."""
    torch.manual_seed(0)
    torch.zeros(1, device=DEVICE)  # CUDA starts before the faulty kernels are loaded
    model = Net(fault).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Pages(), batch_size=BATCH, shuffle=True)
    skipped = 0
    with ocrlab.record(folder, model, optimizer) as rec:
        for batch in rec.batches(loader):
            try:
                loss = rec.loss(model(batch["pixels"].to(DEVICE), batch["source"].to(DEVICE)).square().mean())
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                number = loss.item()
            except RuntimeError:
                if fault != "sticky" or skipped:
                    raise
                skipped += 1
                continue
            if number != number or number == float("inf"):
                raise FloatingPointError(f"loss is {number}")


def capacity(_folder: Path) -> None:
    """Keep 80 % of the card in tensors of one step, and ask for 50 % more."""
    if DRY_RUN:
        raise torch.OutOfMemoryError(OUT_OF_MEMORY.format(other="", own="63.80", allocated="63.20", reserved="0.10"))
    total = torch.cuda.mem_get_info()[1]
    activations = [torch.empty(int(0.08 * total), dtype=torch.uint8, device=DEVICE) for _ in range(10)]
    activations.append(torch.empty(int(0.5 * total), dtype=torch.uint8, device=DEVICE))
    print(len(activations))


def fragmentation(_folder: Path) -> None:
    """Leave half of the card free in pieces that are too small for what is asked for next."""
    if DRY_RUN:
        raise torch.OutOfMemoryError(OUT_OF_MEMORY.format(other="", own="63.80", allocated="23.20", reserved="40.10"))
    size = torch.cuda.mem_get_info()[1] // 64
    blocks = []
    for _ in range(28):
        pair = torch.empty(2 * size, dtype=torch.uint8, device=DEVICE)
        del pair  # its segment is cut in two
        blocks += [torch.empty(size, dtype=torch.uint8, device=DEVICE) for _ in range(2)]
    del blocks[1::2]
    print(torch.empty(8 * size, dtype=torch.uint8, device=DEVICE).numel())


def foreign(folder: Path) -> None:
    """Ask for half of a card of which another process has 80 %."""
    import subprocess

    if DRY_RUN:
        other = "Process 4242 has 62.00 GiB memory in use. "
        raise torch.OutOfMemoryError(OUT_OF_MEMORY.format(other=other, own="1.80", allocated="1.20", reserved="0.10"))
    code = (
        "import sys, torch\n"
        "x = torch.empty(int(0.8 * torch.cuda.mem_get_info()[1]), dtype=torch.uint8, device='cuda')\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        print(torch.empty(int(0.5 * torch.cuda.mem_get_info()[1]), dtype=torch.uint8, device=DEVICE).numel())
    finally:
        if holder.stdin is not None:
            holder.stdin.close()


def race(_folder: Path) -> None:
    """Write a tensor on a second stream while the first one still reads it; TORCH_CUDA_SANITIZER=1 sees it."""
    if DRY_RUN:
        raise RuntimeError(MESSAGES["race"])
    pixels = torch.rand(4, 3, 64, 64, device=DEVICE)
    with torch.cuda.stream(torch.cuda.Stream()):
        pixels.mul_(2.0)
    print(pixels.sum().item())


OTHERS: dict[str, Callable[[Path], None]] = {
    "capacity": capacity,
    "fragmentation": fragmentation,
    "foreign": foreign,
    "race": race,
}

if __name__ == "__main__":
    name, run_folder = sys.argv[1], Path(sys.argv[2])
    OTHERS[name](run_folder) if name in OTHERS else train(name, run_folder)
