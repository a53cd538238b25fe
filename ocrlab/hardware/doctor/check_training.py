"""Steps 5, 6 and 10: the mapped libraries, a smoke test, a DataLoader and the way to the tracker."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ocrlab.hardware.doctor.check_gpus import no_gpu
from ocrlab.hardware.doctor.check_packages import torch_facts, torchless
from ocrlab.hardware.doctor.check_spec import PROBES, Answer, Facts, Options, Probe, fail, judge, ok, skip, warn
from ocrlab.hardware.system_files import read_text
from ocrlab.records import Check

FAMILY = re.compile(r"^lib(cudnn|cublas|nccl|cudart|cufft|cusolver|cusparse(?!Lt)|nvrtc)")
OPENMP = re.compile(r"^(libgomp|libiomp5|libomp)[.-]")
SEARCHED = ("cudnn", "cublas", "nccl", "cudart")  # found in a folder of LD_LIBRARY_PATH they come before the wheel's
RUNG_CAUSES = (  # what a rung says when it fails -> cause, what to do; the first that is found
    (r"no kernel image|invalid device function", "build.arch", "uv pip install -U --torch-backend=auto torch"),
    (r"out of memory", "gpumem.foreign", "nvidia-smi names who holds the memory"),
    (r"busy or unavailable", "driver.device_busy", "nvidia-smi names the process that has the GPU for itself"),
    (r"uncorrectable ECC|NVLink error|fallen off", "hw.gpu", "dmesg | grep -i xid; nvidia-smi -q -d ECC"),
    (r"CUDNN_STATUS|CUBLAS_STATUS|cudnn", "build.cuda_libraries", "env -u LD_LIBRARY_PATH ocrlab doctor"),
    (r"illegal memory access", "kernel.illegal_address", "dmesg | grep -i xid; lower the clocks: nvidia-smi -lgc 1200"),
    (r"illegal instruction", "kernel.illegal_instruction",
     "dmesg | grep -i xid; lower the clocks: nvidia-smi -lgc 1200"),
    (r"unspecified launch failure", "kernel.launch_failure", "dmesg | grep -i xid"),
    (r"differ|wrong", "hw.gpu", "again with lower clocks: sudo nvidia-smi -lgc 1200; then dcgmi diag -r 3"),
    (r"", None, "ocrlab doctor"),
)  # fmt: skip
SURFACED = (
    "a CUDA error surfaces at the next call that waits: .cpu() before .item() cannot avoid an access that already "
    "happened; CUDA_LAUNCH_BLOCKING=1 names the call"
)
SLOW_LOADER = 30.0  # seconds; a spawned worker imports torch again
LOADER_CAUSES = {"fork": "loader.fork_deadlock", "spawn": "loader.hang_sample"}
SERVER = "https://api.wandb.ai"
OFF = ("disabled", "offline", "dryrun")
WAIT = 5.0  # seconds; a server that needs longer to accept a connection holds up every login
SLOW_TRACKER = 2.0  # seconds


def training_probes(options: Options) -> list[Probe]:
    """Return the probes of steps 5, 6 and 10.

    A first convolution on a GPU loads cuDNN for up to 20 s from a cold disk; a spawned loader worker imports torch
    anew, from a cold disk in half a minute. What libraries are mapped was answered by the imports.
    """
    torch_probe, limits = PROBES / "torch_probe.py", PROBES / "resource_limits.py"
    host, port, owner = tracker_address(os.environ)
    return [
        Probe(5, "CUDA libraries", limits, "library_path", judge_libraries, 10, own=True,
            after=("import torch", "import torchvision", "torch and the GPU", "smoke test: GPU")),
        Probe(6, "smoke test: CPU", torch_probe, "ladder", partial(judge_rungs, "smoke test: CPU"), 60,
            {"device": "cpu"}, 20, after=("import torch", "driver"), skip=skip_cpu, hang="hang.deadlock"),
        Probe(6, "smoke test: GPU", torch_probe, "ladder", partial(judge_rungs, "smoke test: GPU"), 90,
            {"device": "cuda:0"}, 30, after=("driver", "import torch", "torch and the GPU"), skip=skip_gpu,
            hang="hang.gpu_kernel"),
        *(Probe(10, f"DataLoader by {method}", torch_probe, "batches", judge_loader, 60,
            {"method": method}, 15, after=("import torch",), skip=torchless, hang=hang, crash="loader.worker_crash")
          for method, hang in LOADER_CAUSES.items()),
        Probe(10, "tracker network", limits, "network", partial(judge_tracker, f"{host}:{port} ({owner})"), WAIT + 5,
            {"address": host, "port": port, "timeout": WAIT}, own=True, hang="tracker.network",
            skip=lambda facts: tracking_off_reason(os.environ, Path.home() / ".netrc")),
    ]  # fmt: skip


def judge_libraries(answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the findings on mapped libraries and on the loader's search path."""
    if why := torchless(facts):
        yield skip("libraries mapped", why)
    else:
        names = ("import torch", "torch and the GPU", "smoke test: GPU")
        mapped = {path for name in names for path in facts.get(name, {}).get("mapped", ())}
        yield judge_families(mapped)
        yield judge_openmp(mapped)
    yield judge_search_path(answer)


def judge_families(mapped: set[str]) -> Check:
    """Judge whether each CUDA library comes from one folder and in one version."""
    families: dict[str, set[tuple[str, str]]] = defaultdict(set)  # folder and major version
    for folder, file in map(os.path.split, sorted(mapped)):
        if match := FAMILY.match(file):
            families[match[1]].add((folder, "".join(re.findall(r"\.so\.(\d+)", file)[:1])))
    if not families:
        return ok("libraries mapped", "torch mapped no CUDA library: a build for the processor")
    places = {family: sorted({folder for folder, _ in each}) for family, each in sorted(families.items())}
    versions = {family: sorted({major for _, major in each if major}) for family, each in sorted(families.items())}
    mixed = [family for family in places if len(places[family]) > 1 or len(versions[family]) > 1]
    listed = ", ".join(f"{family} {'/'.join(versions[family])}".strip() for family in places)
    return judge(
        "libraries mapped",
        "; ".join(f"lib{family} from {' and '.join(places[family])}" for family in mixed)
        or f"each from one folder: {listed}",
        need="each CUDA library from one folder, that of the wheel",
        do="unset LD_LIBRARY_PATH, and remove the system's copy of it",
        cause="build.cuda_libraries",
        fails=bool(mixed),
    )


def judge_openmp(mapped: set[str]) -> Check:
    """Judge whether more than one OpenMP is loaded: two pools of threads fight for the cores, or die of a fork."""
    kinds = {path: match[1] for path in sorted(mapped) if (match := OPENMP.match(os.path.basename(path)))}
    mixed = len(set(kinds.values())) > 1
    return judge(
        "OpenMP",
        f"two OpenMP runtimes in one process: {', '.join(kinds)}"
        if mixed
        else ", ".join(sorted(set(map(os.path.basename, kinds)))) or "none mapped",
        need="one",
        do="install torch and NumPy from one source; until then OMP_NUM_THREADS=1",
        warns=mixed,
    )


def judge_search_path(answer: dict[str, list[str]]) -> Check:
    """Judge the folders and files that the loader looks at before the wheel's."""
    searched = [path for path in answer["offers"] if any(f"lib{name}" in path for name in SEARCHED)]
    offers = list({os.path.realpath(path): path for path in reversed(searched)}.values())[::-1]  # links only once
    preload = ":".join(answer["preload"])
    if offers:
        more = f" and {len(offers) - 3} more" if offers[3:] else ""
        return warn(
            "library search path",
            f"LD_LIBRARY_PATH offers {', '.join(offers[:3])}{more}",
            need="the wheel's own libraries",
            do="unset LD_LIBRARY_PATH",
            cause="build.cuda_libraries",
        )
    observed = f"LD_PRELOAD={preload}" if preload else "nothing comes before the wheel's libraries"
    return judge("library search path", observed, "none, unless on purpose", "unset LD_PRELOAD", warns=bool(preload))


def skip_cpu(facts: Facts) -> str | None:
    """Return why the processor cannot be tried: torch's backward asks a driver for its GPUs, used or not."""
    silent = "the driver did not answer, and torch's backward pass asks it on the CPU too: it would not return"
    return torchless(facts) or (None if "driver" in facts else silent)


def skip_gpu(facts: Facts) -> str | None:
    """Return why there is no GPU to try."""
    build = torch_facts(facts)
    why = torchless(facts) or (None if build.get("hip") else no_gpu(facts))
    return why if why or build.get("devices") else "torch sees no GPU, see step 4"


def judge_rungs(label: str, answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the finding on a smoke test: how many of its rungs, each harder than the last, gave a right result."""
    rungs: list[dict[str, Any]] = answer.get("rungs", [])
    right = sum(rung["ok"] for rung in rungs)
    first = next((rung for rung in rungs if not rung["ok"]), None)
    if not rungs:
        yield fail(label, "no operation ran", "an allocation", "ocrlab doctor")
    elif first is None:
        done = f"{right} of {len(rungs)} operations right, up to a convolution step in fp32 and bf16"
        yield ok(label, f"{done}, in {sum(rung['seconds'] for rung in rungs):.1f} s")
    else:
        error = first["error"]
        cause, do = next((cause, do) for pattern, cause, do in RUNG_CAUSES if re.search(pattern, error))
        observed = f"fails at {first['rung']}: {error.splitlines()[0]}; {right} operations before it were right"
        observed += f". Note: {SURFACED}" if "CUDA error" in error else ""
        yield fail(label, observed, "every result is the CPU's", do, None if label.endswith("CPU") else cause)


def judge_loader(answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the finding on one round trip."""
    label = f"DataLoader by {answer['method']}"
    observed = f"{answer['batches']} batches of 2 workers in {answer['seconds']:.1f} s"
    if answer["same"]:
        yield judge(
            label,
            observed,
            need=f"less than {SLOW_LOADER:.0f} s",
            do="install the environment on a local disk; persistent_workers=True",
            warns=answer["seconds"] > SLOW_LOADER,
        )
    else:
        different = f"{observed}, and they differ from what was sent"
        yield fail(label, different, "the batches that were sent", "check the memory: memtest86+")


def tracking_off_reason(environment: Mapping[str, str], netrc: Path) -> str | None:
    """Return why no tracker is used, or None where one is: by WANDB_MODE, by a key, or by a login of wandb's."""
    mode = environment.get("WANDB_MODE", "").lower()
    if mode in OFF or environment.get("WANDB_DISABLED", "").lower() in ("1", "true"):
        return f"tracking is off (WANDB_MODE={mode or 'disabled'})"
    if any(environment.get(f"WANDB_{name}") for name in ("MODE", "API_KEY", "BASE_URL")) or "wandb" in read_text(netrc):
        return None
    return "tracking is off: neither WANDB_MODE nor a key is set"


def tracker_address(environment: Mapping[str, str]) -> tuple[str, int, str]:
    """Return host and port to connect to, and whose they are: the server's or the proxy's in front of it."""
    server = urlsplit(environment.get("WANDB_BASE_URL") or SERVER)
    names = (f"{server.scheme}_proxy", f"{server.scheme}_proxy".upper())
    if proxy := next((environment[name] for name in names if environment.get(name)), ""):
        place = urlsplit(proxy if "//" in proxy else f"//{proxy}")
        return place.hostname or "", place.port or 3128, f"the proxy for {server.hostname}"
    return server.hostname or "", server.port or (443 if server.scheme == "https" else 80), "the server"


def judge_tracker(where: str, answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the finding on the connection."""
    error = answer.get("error")
    yield judge(
        "tracker network",
        f"{where} cannot be reached: {error}" if error else f"{where} answers in {answer['seconds']:.2f} s",
        need="a connection, or tracking offline" if error else f"{SLOW_TRACKER:.0f} s",
        do="WANDB_MODE=offline, and `wandb sync` afterwards; or set https_proxy",
        cause="tracker.network",
        fails=bool(error),
        warns=answer["seconds"] > SLOW_TRACKER,
    )
