"""What becomes of an import, and what torch says of itself; only ever called in a child, by a Python from 3.8 on.

What is probed is imported by name, late: this file belongs to the half that never imports torch.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

FAMILIES = re.compile(
    r"/lib(cudnn|cublas|cublasLt|nccl|cudart|cufft|cusolver|cusparse|cusparseLt|nvrtc|cuda|nvidia-ml|gomp|iomp5|omp|stdc\+\+)"
    r"(?=[_.-])[^/]*\.so[^/]*$"
)


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
    yield {"torch": _build(module), "mapped": mapped(), "numpy": _numpy()}


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
        indices = ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5).tolist()
    except Exception as error:
        yield {"nms": None, "error": _describe_error(error)}
    else:
        yield {"nms": indices}


def attempt(name: str) -> dict[str, Any]:
    """Import a module and return seconds and version, or the exception with the file it came from."""
    began, before = time.perf_counter(), set(sys.modules)
    try:
        module = importlib.import_module(name)
    except BaseException as error:  # SystemExit of a module that was meant as a program included
        seconds = time.perf_counter() - began
        return {"name": name, "imported": False, "seconds": seconds, "error": _describe_error(error)}
    seconds = time.perf_counter() - began
    return {
        "name": name,
        "imported": True,
        "seconds": seconds,
        "compiled": compiled(before),
        "stored": not sys.dont_write_bytecode,
        "version": str(getattr(module, "__version__", "")),
        "file": str(getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [""])))),
    }


def compiled(before: set[str]) -> int:
    """Return how many modules, besides those of `before`, had to be compiled and will have to be the next time."""
    specs = [getattr(module, "__spec__", None) for name, module in list(sys.modules.items()) if name not in before]
    places = [getattr(spec, "cached", None) for spec in specs]
    return sum(not os.path.exists(place) for place in places if isinstance(place, str))


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


def _numpy() -> dict[str, Any]:
    """Return the instruction sets that NumPy found and may dispatch; `__cpu_features__` is where it keeps them."""
    for name in ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath"):
        module = sys.modules.get(name)
        features = getattr(module, "__cpu_features__", None)
        if isinstance(features, dict):
            return {
                "has": sorted(key for key, there in features.items() if there),
                "baseline": list(getattr(module, "__cpu_baseline__", [])),
                "disabled": os.environ.get("NPY_DISABLE_CPU_FEATURES", ""),
            }
    return {}


def _describe_error(error: BaseException) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename}:{frame.lineno}" for frame in frames if "ocrlab" not in frame.filename.split("/")[-3:]]
    where = places[-1] if places else ""
    return {"type": type(error).__name__, "message": str(error)[:2000], "where": where}
