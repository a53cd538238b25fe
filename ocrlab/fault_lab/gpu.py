"""What only a GPU can do wrong; each runs where there is one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ocrlab.fault_lab.fault import Fault
from ocrlab.fault_lab.setup import torch

KERNELS = r"""
extern "C" __global__ void copy(float *to, const float *from, int shift) {
    to[threadIdx.x] = from[threadIdx.x + ((long long)shift << 32)];
}
extern "C" __global__ void load4(float *to, const char *from) {
    *(float4 *)to = *(const float4 *)(from + 4);
}
extern "C" __global__ void check(float *to) {
    if (to[threadIdx.x] == 0.0f) asm volatile("trap;");
}
extern "C" __global__ void settle(float *to) {
    volatile float *flag = to;
    while (*flag == 0.0f) { }
}
extern "C" __global__ void mix(float *to) {
    float row[128];
    #pragma unroll
    for (int i = 0; i < 128; ++i) row[i] = to[threadIdx.x + 16 * i];
    __syncthreads();
    float sum = 0.0f;
    #pragma unroll
    for (int i = 0; i < 128; ++i) sum = sum * row[(i * 37) % 128] + row[i];
    to[threadIdx.x] = sum;
}
"""


def kernel(name: str) -> Callable[..., None]:
    """Return one of the kernels, compiled for this GPU by NVRTC; the wheel brings it."""
    compiled: Callable[..., None] = torch.cuda._compile_kernel(KERNELS, name)
    return compiled


def launch(name: str, *more: Any, block: int = 32) -> None:
    """Run a kernel over a small tensor of zeros, and look at the sum, where an error surfaces."""
    to = torch.zeros(4096, device="cuda")
    kernel(name)(grid=(1, 1, 1), block=(block, 1, 1), args=[to, *more])
    print(f"sum {to.sum().item():.1f}")


def copy_pages() -> None:
    launch("copy", torch.ones(4096, device="cuda"), 1 << 16)


def load_pages() -> None:
    launch("load4", torch.ones(4096, device="cuda"))


def classify() -> None:
    head = torch.nn.Linear(16, 5).cuda()
    for labels in ([0, 1, 4, 2], [3, 3, 5, 1]):
        loss = torch.nn.functional.cross_entropy(head(torch.rand(4, 16).cuda()), torch.tensor(labels).cuda())
        loss.backward()
        print(f"loss {loss.item():.3f}")


def retry_after_copy() -> None:
    try:
        copy_pages()
    except RuntimeError:
        torch.cuda.empty_cache()
        print(torch.ones(4, device="cuda").sum().item())


def free_bytes() -> int:
    """Return how many bytes are free on the GPU."""
    return int(torch.cuda.mem_get_info()[0])


def train_large() -> None:
    side = int((free_bytes() / 16) ** 0.5)
    activations = [torch.empty(side, side, device="cuda") for _ in range(3)]
    print(sum(page.numel() for page in activations) * torch.empty(2 * side, side, device="cuda").numel())


def train_varied() -> None:
    pages = [
        torch.empty(8 << 20, dtype=torch.uint8, device="cuda") for _ in range(int(free_bytes() * 0.97) // (10 << 20))
    ]
    del pages[::2]
    print(torch.empty(free_bytes() + (8 << 30), dtype=torch.uint8, device="cuda").numel())


def train_logged() -> None:
    weight = torch.nn.Parameter(torch.ones(1, device="cuda"))
    page = torch.rand(int(free_bytes() / 4 / 20), device="cuda")
    total = torch.zeros((), device="cuda")
    for step in range(1000):
        loss = (page * weight).exp().mean()
        total = total + loss
        print(f"step {step} loss {loss.item():.3f}", flush=True)


def occupy(ready: Any) -> None:
    block = torch.empty(int(free_bytes() * 0.95), dtype=torch.uint8, device="cuda")
    ready.set()
    time.sleep(60)
    del block


def train_beside() -> None:
    import torch.multiprocessing as processes

    context = processes.get_context("spawn")
    ready = context.Event()
    context.Process(target=occupy, args=(ready,), daemon=True).start()
    ready.wait()
    print(torch.zeros(8, 1 << 30, device="cuda").sum().item())


def pin_pages() -> None:
    print(torch.empty(1 << 45, dtype=torch.uint8, pin_memory=True).numel())


class Pages:
    """Pages that are put on the GPU where they are loaded."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return torch.ones(4, device="cuda") * index


def train_from_workers() -> None:
    from torch.utils.data import DataLoader

    net = torch.nn.Linear(4, 4).cuda()
    for batch in DataLoader(Pages(), num_workers=1, multiprocessing_context="fork"):  # type: ignore[arg-type]
        net(batch)


def mix_devices() -> None:
    torch.nn.Linear(4, 4).cuda()(torch.rand(2, 4))


def use_hidden_card() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.zeros(4).cuda()


def train_half() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 1)).cuda()
    for step in range(10):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = net(torch.rand(8, 512, device="cuda") * 1e5 * (step + 1)).square().mean()
        assert torch.isfinite(loss), f"step {step}: loss is {loss.item()}"


def join_card(rank: int, port: int) -> None:
    import torch.distributed as group

    torch.cuda.set_device(0)
    address = f"tcp://127.0.0.1:{port}"
    group.init_process_group("nccl", init_method=address, rank=rank, world_size=2)
    group.all_reduce(torch.ones(4, device="cuda"))


def train_ranks_on_same_card() -> None:
    import torch.multiprocessing as processes

    processes.spawn(join_card, args=(29533,), nprocs=2)  # type: ignore[no-untyped-call]


ADDRESS, INDEX, GPU = ("kernel.illegal_address",), ("data.index_range",), ("gpu",)
LAUNCH, TRAP = ("kernel.launch_resources",), ("kernel.illegal_instruction", "kernel.launch_failure")
DEVICE, ENDLESS = ("driver.no_visible_device",), ("hang.gpu_kernel",)
FAULTS = (
    Fault("gpu_wild", "a kernel reads far away", "failed", ADDRESS, copy_pages, GPU),
    Fault("gpu_retried", "goes on after a sticky error", "failed", ADDRESS, retry_after_copy, GPU),
    Fault("gpu_misaligned", "a vector load at an odd address", "failed", ("kernel.misaligned",), load_pages, GPU),
    Fault("gpu_trap", "a trap in a kernel", "failed", TRAP, partial(launch, "check"), GPU),
    Fault(
        "gpu_registers",
        "a block that needs too many registers",
        "failed",
        LAUNCH,
        partial(launch, "mix", block=1024),
        GPU,
    ),
    Fault("gpu_endless", "a kernel that waits for ever", "hung", ENDLESS, partial(launch, "settle"), GPU),
    Fault("gpu_class", "a class id past the last", "failed", INDEX, classify, GPU),
    Fault("gpu_capacity", "a step that does not fit", "failed", ("gpumem.capacity",), train_large, GPU),
    Fault("gpu_fragments", "memory in pieces", "failed", ("gpumem.fragmentation",), train_varied, GPU),
    Fault("gpu_leak", "keeps the graph of every loss", "failed", ("gpumem.leak",), train_logged, GPU),
    Fault("gpu_foreign", "another process has the memory", "failed", ("gpumem.foreign",), train_beside, GPU),
    Fault("gpu_pinned", "32 TB of pinned memory", "failed", ("gpumem.raw_alloc", "host.alloc_fail"), pin_pages, GPU),
    Fault("gpu_fork", "CUDA in a forked worker", "failed", ("loader.cuda_in_fork",), train_from_workers, GPU),
    Fault("gpu_devices", "a page on the CPU", "failed", ("user.device",), mix_devices, GPU),
    Fault("gpu_hidden", "no card is visible", "failed", DEVICE, use_hidden_card, GPU),
    Fault("gpu_half", "half precision overflows", "failed", ("num.nonfinite",), train_half, GPU),
    Fault("gpu_ranks", "two ranks on one card", "failed", ("dist.misconfig",), train_ranks_on_same_card, GPU),
)
