"""The smoke ladder: from one allocation to an optimiser step, each rung compared with a known answer.

Only ever called in a child, by a Python from 3.8 on. Each rung is announced before it is climbed, so that a process
that dies or hangs has told where.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from typing import Any

MIB = 1 << 20
# Largest difference from the same convolution in float64: fp32 sums 144 products of numbers near 1 with TF32 off
# (error about 1e-5), bf16 keeps 8 bits (about 0.4 % of values up to 30).
CLOSE = {"fp32": 1e-3, "bf16": 0.35}


def ladder(device: str) -> Iterator[dict[str, Any]]:
    """Climb the ladder on a device (cpu, cuda:0); yields {"at"} before and {"rung", "ok"} after each rung.

    It stops at the first rung of a GPU that fails: after a sticky error every later call fails with it.
    """
    yield {"at": "import torch"}
    torch: Any = importlib.import_module("torch")
    torch.manual_seed(0)
    rungs = basic(torch, device)
    for cudnn in (True, False) if device != "cpu" else (None,):
        for precision in ("fp32", "bf16"):
            name = f"convolution step {precision}" + ("" if cudnn is None else f", cuDNN {'on' if cudnn else 'off'}")
            if precision == "fp32" or device == "cpu" or torch.cuda.is_bf16_supported():  # before Ampere some are not
                rungs.append((name, functools.partial(step, torch, device, precision, cudnn)))
    for name, climb in rungs:
        yield {"at": name}
        began = time.perf_counter()
        try:
            problem = climb()
            if device != "cpu":
                torch.cuda.synchronize()
        except Exception as error:
            yield {"rung": name, "ok": False, "error": f"{type(error).__name__}: {error}"[:1500]}
            if device != "cpu":
                break
        else:
            yield {"rung": name, "ok": problem is None, "error": problem, "seconds": time.perf_counter() - began}
    if device != "cpu":
        yield {"mapped": mapped()}


def mapped() -> list[str]:
    """Return the shared libraries that are mapped by now: cuDNN and cuBLAS load parts when they are first used."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        return sorted({line.split(None, 5)[5].strip() for line in maps if ".so" in line and "/lib" in line})


def basic(torch: Any, device: str) -> list[tuple[str, Callable[[], str | None]]]:
    """Return the first rungs: allocate, add, synchronise, multiply, copy back and compare with the CPU."""
    tensors: dict[str, Any] = {}

    def allocate() -> str | None:
        tensors["a"] = torch.empty(16 * MIB // 4, device=device).fill_(1.5)
        return None

    def add() -> str | None:
        tensors["b"] = tensors["a"] + 1
        return None

    def synchronise() -> str | None:
        if device != "cpu":
            torch.cuda.synchronize()
        wrong = int((tensors["b"] != 2.5).sum().item())
        return f"{wrong} of {tensors['b'].numel()} sums are wrong" if wrong else None

    def multiply() -> str | None:
        # Whole numbers up to 8 have products and sums that fp32, TF32 and every order of summing give exactly.
        tensors["left"] = torch.randint(-8, 9, (256, 256)).float()
        tensors["right"] = torch.randint(-8, 9, (256, 256)).float()
        tensors["product"] = tensors["left"].to(device) @ tensors["right"].to(device)
        return None

    def compare() -> str | None:
        want = tensors["left"].double() @ tensors["right"].double()
        wrong = int((tensors["product"].cpu().double() != want).sum())
        return f"{wrong} of {want.numel()} products differ from the CPU's" if wrong else None

    return [
        ("allocate", allocate),
        ("add", add),
        ("synchronise", synchronise),
        ("matrix product", multiply),
        ("copy back and compare", compare),
    ]


def step(torch: Any, device: str, precision: str, cudnn: bool | None) -> str | None:
    """Do a convolution forward, backward and an optimiser step; return what differs from float64 on the CPU."""
    generator = torch.Generator().manual_seed(1)
    image = torch.randn(2, 16, 32, 32, generator=generator)
    layer = torch.nn.Conv2d(16, 8, 3, padding=1)
    reference = torch.nn.Conv2d(16, 8, 3, padding=1).double()
    with torch.no_grad():
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator))
        layer.bias.zero_()
        reference.weight.copy_(layer.weight)
        reference.bias.copy_(layer.bias)
    want = reference(image.double())
    want.square().mean().backward()
    layer = layer.to(device)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
    kind = device.split(":")[0]
    flags = (
        torch.backends.cudnn.flags(enabled=bool(cudnn), allow_tf32=False)
        if cudnn is not None
        else contextlib.nullcontext()
    )
    with flags:
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=precision == "bf16"):
            out = layer(image.to(device))
        out.float().square().mean().backward()
        before = layer.weight.detach().clone()
        gradient = layer.weight.grad.detach().clone()
        optimiser.step()
    return wrong(
        {
            "forward": (out, want),
            "backward": (gradient, reference.weight.grad),
            "optimiser step": (layer.weight, before - 0.1 * gradient),
        },
        CLOSE[precision],
    )


def wrong(pairs: dict[str, tuple[Any, Any]], limit: float) -> str | None:
    """Return which result is not finite or further from its reference than `limit`, or None."""
    for name, (have, want) in pairs.items():
        difference = float((have.detach().cpu().double() - want.detach().cpu().double()).abs().max())
        if not difference <= limit:
            return f"{name} differs from the CPU's float64 by {difference:.3g}, the limit is {limit:g}"
    return None
