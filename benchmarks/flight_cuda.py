"""Runs one fault on a GPU: `python benchmarks/flight_cuda.py FAULT PAGE FOLDER [--time]`, for tests/gpu/test_flight.py.

The faulty kernels are real: an index outside of an embedding, a load from an odd address, a store far outside of every
allocation, an allocation that no card has room for. They surface later, at the next call that waits for the device.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ocrlab.debug.recorder.loop_recorder import recording

KERNELS = {
    "misaligned": "float* p = (float*)((char*)x + 1); if (hit) *p = 1.0f;",
    "illegal": "float* p = x + (1LL << 40); if (hit) *p = 1.0f;",
}
PAGES, BATCH = 24, 4


class Pages(Dataset[dict[str, Any]]):
    """Random pages with a name and a number; the drawn one has a number out of range."""

    def __init__(self, page: int) -> None:
        self.page = page

    def __len__(self) -> int:
        return PAGES

    def __getitem__(self, index: int) -> dict[str, Any]:
        pixels = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(index))
        return {"pixels": pixels, "source": 999_999 if index == self.page else index % 8, "name": f"scan-{index}.png"}


class Native(torch.autograd.Function):
    """A user's kernel that is wrong for some pages."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, hit: bool, kernel: Any) -> Tensor:
        y = x.clone()
        kernel(grid=(1, 1, 1), block=(32, 1, 1), args=[y, int(hit)])
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None, None


class Net(nn.Module):
    """Convolutions with the fault in `line_filter`, or an embedding that is asked for too much."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2, 1)
        self.source = nn.Embedding(8, 16)
        self.line_filter = Filter(fault)
        self.head = nn.Conv2d(16, 1, 1)

    def forward(self, pixels: Tensor, source: Tensor) -> Tensor:
        x = self.stem(pixels)
        x = x + self.source(source if self.line_filter.fault == "index" else source.clamp(max=7))[:, :, None, None]
        return self.head(self.line_filter(x, source))


class Filter(nn.Module):
    """The module with the user's kernel."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault, self.kernel = fault, None
        if fault in KERNELS:
            source = f'extern "C" __global__ void line_filter(float* x, int hit) {{ {KERNELS[fault]} }}'
            self.kernel = torch.cuda._compile_kernel(source, "line_filter")

    def forward(self, x: Tensor, source: Tensor) -> Tensor:
        hit = bool((source > 7).any())
        if self.fault == "oom" and hit:
            return x + torch.empty(1 << 46, device=x.device).mean()
        return Native.apply(x, hit, self.kernel) if self.kernel else x


def main() -> None:
    """Train until it fails; with --time no page is bad, and seconds of a step are printed."""
    fault, page, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    timed = "--time" in sys.argv
    torch.manual_seed(0)
    torch.zeros(1, device="cuda")  # the kernel is loaded into the context that this makes
    model = Net("none" if timed else fault).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Pages(-1 if timed else page), batch_size=BATCH, shuffle=True)
    spent: list[float] = []
    with recording(Path(folder, "run"), model, optimizer) as rec:
        for _ in range(10 if timed else 1):
            for batch in rec.batches(loader):
                begin = time.perf_counter()
                loss = model(batch["pixels"].cuda(), batch["source"].cuda()).square().mean()
                rec.loss(loss)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                loss.item()
                spent.append(time.perf_counter() - begin)
    print(f"seconds {sorted(spent)[len(spent) // 2]:.6f}")


if __name__ == "__main__":
    main()
