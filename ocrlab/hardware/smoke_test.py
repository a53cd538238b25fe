"""The smoke ladder: from one allocation to an optimiser step, each rung compared with a known answer.

Only ever called in a child, by a Python from 3.8 on. Each rung is announced before it is climbed, so that the last
answer of a process that dies or hangs says where.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Generator, Iterator
from typing import Any

MIB = 1 << 20
# Largest difference from the same convolution in float64: fp32 sums 144 products of numbers near 1 with TF32 off
# (error about 1e-5), bf16 keeps 8 bits (about 0.4 % of values up to 30).
CLOSE = {"fp32": 1e-3, "bf16": 0.35}


def ladder(device: str) -> Iterator[dict[str, Any]]:
    """Climb the ladder on a device (cpu, cuda:0); yields {"at"} before each rung, and {"rungs"} so far after it.

    It stops at the first rung that raises: after a sticky error every later call on a GPU fails with it.
    """
    yield {"at": "import torch"}
    torch: Any = importlib.import_module("torch")
    torch.manual_seed(0)
    climb = rungs(torch, device)
    done: list[dict[str, Any]] = []
    for name in climb:
        yield {"at": name}
        began = time.perf_counter()
        try:
            problem = next(climb)
            if device != "cpu":
                torch.cuda.synchronize()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"[:1500]
            climb.close()
        seconds = time.perf_counter() - began
        done.append({"rung": name, "ok": problem is None, "error": problem, "seconds": seconds})
        yield {"rungs": list(done)}
    if device != "cpu":
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.split(None, 5)[5].strip() for line in maps if ".so" in line and "/lib" in line}
        yield {"mapped": sorted(paths)}  # cuDNN and cuBLAS load parts of themselves when they are first used


def rungs(torch: Any, device: str) -> Generator[Any, None, None]:
    """Yield the name of each rung before it is climbed, and after it what is wrong with its result, or None."""
    yield "allocate"
    tensor = torch.empty(16 * MIB // 4, device=device).fill_(1.5)
    yield None
    yield "add"
    total = tensor + 1
    yield None
    yield "synchronise"
    if device != "cpu":
        torch.cuda.synchronize()
    count = int((total != 2.5).sum().item())
    yield f"{count} of {total.numel()} sums are wrong" if count else None
    yield "matrix product"
    # Whole numbers up to 8 have products and sums that fp32, TF32 and every order of summing give exactly.
    left, right = (torch.randint(-8, 9, (256, 256)).float() for _ in range(2))
    product = left.to(device) @ right.to(device)
    yield None
    yield "copy back and compare"
    want = left.double() @ right.double()
    count = int((product.cpu().double() != want).sum())
    yield f"{count} of {want.numel()} products differ from the CPU's" if count else None
    for cudnn in (True, False) if device != "cpu" else (None,):
        for precision in ("fp32", "bf16"):
            if precision == "fp32" or device == "cpu" or torch.cuda.is_bf16_supported():  # before Ampere some are not
                switch = "" if cudnn is None else f", cuDNN {'on' if cudnn else 'off'}"
                yield f"convolution step {precision}{switch}"
                yield step(torch, device, precision, cudnn)


def step(torch: Any, device: str, precision: str, cudnn: bool | None) -> str | None:
    """Do a convolution forward, backward and an optimiser step; return what differs from float64 on the CPU."""
    generator = torch.Generator().manual_seed(1)
    image = torch.randn(2, 16, 32, 32, generator=generator)
    layer = torch.nn.Conv2d(16, 8, 3, padding=1)
    reference = torch.nn.Conv2d(16, 8, 3, padding=1).double()
    with torch.no_grad():
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator))
        layer.bias.zero_()
    reference.load_state_dict(layer.state_dict())
    want = reference(image.double())
    want.square().mean().backward()
    layer = layer.to(device)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
    flags: Any = contextlib.nullcontext()
    if cudnn is not None:
        flags = torch.backends.cudnn.flags(enabled=cudnn, allow_tf32=False)
    with flags:
        with torch.autocast(device.split(":")[0], dtype=torch.bfloat16, enabled=precision == "bf16"):
            out = layer(image.to(device))
        out.float().square().mean().backward()
        before, gradient = layer.weight.detach().clone(), layer.weight.grad.detach().clone()
        optimiser.step()
    pairs = {
        "forward": (out, want),
        "backward": (gradient, reference.weight.grad),
        "optimiser step": (layer.weight, before - 0.1 * gradient),
    }
    return wrong(pairs, CLOSE[precision])


def wrong(pairs: dict[str, tuple[Any, Any]], limit: float) -> str | None:
    """Return which result is not finite or further from its reference than `limit`, or None."""
    for name, (have, want) in pairs.items():
        difference = float((have.detach().cpu().double() - want.detach().cpu().double()).abs().max())
        if not difference <= limit:
            return f"{name} differs from the CPU's float64 by {difference:.3g}, the limit is {limit:g}"
    return None
