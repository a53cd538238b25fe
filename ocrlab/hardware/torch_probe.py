"""What becomes of torch and other packages when they are imported, and whether torch computes right results.

Only ever called in a child, by a Python from 3.8 on: imports; the smoke ladder, from one allocation to an optimizer
step; a DataLoader with two workers. Each rung is announced before it is climbed, so that the last answer of a process
that dies or hangs says where. What is probed is imported by name, late: this file belongs to the half that never
imports torch.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
import time
import traceback
import warnings
from collections.abc import Generator, Iterator
from typing import Any

FAMILIES = re.compile(
    r"/lib(cudnn|cublas|cublasLt|nccl|cudart|cufft|cusolver|cusparse|cusparseLt|nvrtc|cuda|nvidia-ml|gomp|iomp5|omp|stdc\+\+)"
    r"(?=[_.-])[^/]*\.so[^/]*$"
)
MIB = 1 << 20
# Largest difference from the same convolution in float64: fp32 sums 144 products of numbers near 1 with TF32 off
# (error about 1e-5), bf16 keeps 8 bits (about 0.4 % of values up to 30).
CLOSE = {"fp32": 1e-3, "bf16": 0.35}
ITEMS, SIDE, WORKERS = 8, 64, 2  # of the loader


def imported(name: str) -> Iterator[dict[str, Any]]:
    """Import a module and yield how long that took, its version and file; an exception is an answer too."""
    yield {"at": f"import {name}"}
    yield attempt(name)


def torch() -> Iterator[dict[str, Any]]:
    """Import torch; yield what it was built for, what it dispatches, and which libraries are mapped by now."""
    yield {"at": "import torch"}
    answer = attempt("torch")
    yield answer
    if not answer["imported"]:
        return
    module = sys.modules["torch"]
    yield {"torch": _build(module), "mapped": mapped()}


def torch_cuda() -> Iterator[dict[str, Any]]:
    """Let torch initialise CUDA and yield what it sees; apart from `torch`, because this is where a driver hangs."""
    yield {"at": "import torch"}
    module = importlib.import_module("torch")
    yield {"at": "the first CUDA call"}
    yield {"torch": _visible_gpus(module), "mapped": mapped()}


def torchvision() -> Iterator[dict[str, Any]]:
    """Import torchvision and really call its compiled `nms`, whose absence an import does not show."""
    yield {"at": "import torchvision"}
    answer = attempt("torchvision")
    yield answer
    if not answer["imported"]:
        return
    yield {"at": "torchvision.ops.nms"}
    torch = sys.modules["torch"]
    ops = importlib.import_module("torchvision.ops")
    boxes = torch.tensor([[0.0, 0.0, 10.0, 10.0], [1.0, 1.0, 11.0, 11.0], [20.0, 20.0, 30.0, 30.0]])
    try:
        yield {"nms": ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5).tolist()}
    except Exception as error:
        yield {"nms": None, "error": _describe_error(error)}


def attempt(name: str) -> dict[str, Any]:
    """Import a module and return seconds and version, or the exception with the file it came from."""
    began = time.perf_counter()
    try:
        module = importlib.import_module(name)
    except BaseException as error:  # SystemExit of a module that was meant as a program included
        error_record = _describe_error(error)
        return {"name": name, "imported": False, "seconds": time.perf_counter() - began, "error": error_record}
    return {
        "name": name,
        "imported": True,
        "seconds": time.perf_counter() - began,
        "version": str(getattr(module, "__version__", "")),
        "file": str(getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [""])))),
    }


def mapped() -> list[str]:
    """Return the CUDA, OpenMP and C++ libraries that are really mapped into this process, by path."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            places = {line.split(None, 5)[5].strip() for line in maps if line.count(" ") >= 5 and "/" in line}
    except (OSError, IndexError):
        return []
    return sorted(place for place in places if FAMILIES.search(place))


def _build(torch: Any) -> dict[str, Any]:
    """Return what torch was built for; each figure by itself, since any of them can be missing in an old version."""
    build: dict[str, Any] = {"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}
    figures = {
        "dispatched": lambda: torch.backends.cpu.get_cpu_capability(),
        "arch_list": lambda: torch._C._cuda_getArchFlags().split(),  # get_arch_list() is empty without a device
        "nccl": lambda: ".".join(map(str, torch.cuda.nccl.version())),
        "threads": lambda: torch.get_num_threads(),
    }
    for name, read in figures.items():
        with contextlib.suppress(Exception):
            build[name] = read()
    with contextlib.suppress(Exception):
        if not build.get("dispatched"):  # by an old version
            build["dispatched"] = re.findall(r"CPU capability usage: (\S+)", torch.__config__.show())[0]
    return build


def _visible_gpus(torch: Any) -> dict[str, Any]:
    """Return what torch says of its GPUs, in its own words where it has complaints."""
    gpus: dict[str, Any] = {"devices": [], "said": ""}
    cuda = torch.cuda
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("always")
        try:
            gpus["available"] = bool(cuda.is_available())
            if torch.version.cuda or torch.version.hip:
                cuda.init()
            for number in range(cuda.device_count() if gpus["available"] else 0):
                capability = list(cuda.get_device_capability(number))
                gpus["devices"].append({"name": cuda.get_device_name(number), "capability": capability})
            with contextlib.suppress(Exception):
                gpus["arch_list"] = cuda.get_arch_list() or None
        except BaseException as error:
            gpus["said"] = f"{type(error).__name__}: {error}"
    texts = [str(warning.message) for warning in caught]
    gpus["warned"] = [text[:1000] for text in texts if "cuda" in text.lower() or "gpu" in text.lower()]
    return {key: value for key, value in gpus.items() if value is not None}


def _describe_error(error: BaseException) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename}:{frame.lineno}" for frame in frames if "ocrlab" not in frame.filename.split("/")[-3:]]
    where = places[-1] if places else ""
    return {"type": type(error).__name__, "message": str(error)[:2000], "where": where}


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
        yield {"mapped": mapped()}  # cuDNN and cuBLAS load parts of themselves when they are first used


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
    """Do a convolution forward, backward and an optimizer step; return what differs from float64 on the CPU."""
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
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    flags: Any = contextlib.nullcontext()
    if cudnn is not None:
        flags = torch.backends.cudnn.flags(enabled=cudnn, allow_tf32=False)
    with flags:
        with torch.autocast(device.split(":")[0], dtype=torch.bfloat16, enabled=precision == "bf16"):
            out = layer(image.to(device))
        out.float().square().mean().backward()
        before, gradient = layer.weight.detach().clone(), layer.weight.grad.detach().clone()
        optimizer.step()
    pairs = {
        "forward": (out, want),
        "backward": (gradient, reference.weight.grad),
        "optimizer step": (layer.weight, before - 0.1 * gradient),
    }
    for name, (have, reference_result) in pairs.items():
        difference = float((have.detach().cpu().double() - reference_result.detach().cpu().double()).abs().max())
        if not difference <= CLOSE[precision]:  # or NaN
            return f"{name} differs from the CPU's float64 by {difference:.3g}, the limit is {CLOSE[precision]:g}"
    return None


def batches(method: str) -> Iterator[dict[str, Any]]:
    """Send every sample through two workers; yield how long that took, and whether each came back unchanged.

    What a spawned worker unpickles must be found by name there: torch's TensorDataset.
    """
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
