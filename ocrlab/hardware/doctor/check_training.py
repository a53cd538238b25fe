"""Steps 5, 6 and 10: the mapped libraries, a smoke test, a DataLoader and the way to the tracker."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ocrlab.hardware.doctor.check_gpus import no_gpu
from ocrlab.hardware.doctor.check_packages import torch_facts, torchless
from ocrlab.hardware.doctor.check_spec import PROBES, Answers, Facts, Options, Probe, fail, ok, skip, warn
from ocrlab.records import Check

FAMILY = re.compile(r"^lib(cudnn|cublas|nccl|cudart|cufft|cusolver|cusparse|nvrtc)")
FILE = re.compile(r"^(?P<name>lib.+?)(?P<bundled>-[0-9a-f]{8})?\.so(?:\.(?P<version>[\d.]+))?$")
SEARCHED = ("cudnn", "cublas", "nccl", "cudart")  # found in a folder of LD_LIBRARY_PATH they come before the wheel's


def library_probes(options: Options) -> list[Probe]:
    """Return the ask of what LD_LIBRARY_PATH offers; what is mapped was told by the imports."""
    after = ("import torch", "import torchvision", "torch and the GPU", "smoke test: GPU")
    return [
        Probe(
            5,
            "CUDA libraries",
            PROBES / "resource_limits.py",
            "library_path",
            judge_libraries,
            10,
            own=True,
            after=after,
        )
    ]


def judge_libraries(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the findings on mapped libraries and on the loader's search path."""
    [paths] = answers
    why = torchless(facts)
    mapped = {
        path
        for name in ("import torch", "torch and the GPU", "smoke test: GPU")
        for answer in facts.get(name, ())
        for path in answer.get("mapped", ())
    }
    yield skip("libraries mapped", why) if why else judge_families(mapped)
    if not why:
        yield judge_openmp(mapped)
    yield judge_search_path(paths)


def judge_families(mapped: set[str]) -> Check:
    """Judge whether each CUDA library comes from one folder and in one version."""
    places: dict[str, set[str]] = defaultdict(set)
    versions: dict[str, set[str]] = defaultdict(set)
    for path in mapped:
        match = FAMILY.match(os.path.basename(path))
        if match:
            places[match[1]].add(os.path.dirname(path))
            name = FILE.match(os.path.basename(path))
            versions[match[1]].add((name["version"] or "").split(".")[0] if name else "")
    label, need = "libraries mapped", "each CUDA library from one folder, that of the wheel"
    if not places:
        return ok(label, "torch mapped no CUDA library: a build for the processor")
    mixed = [family for family in places if len(places[family]) > 1 or len(versions[family] - {""}) > 1]
    if mixed:
        observed = "; ".join(f"lib{family} from {' and '.join(sorted(places[family]))}" for family in sorted(mixed))
        do = "unset LD_LIBRARY_PATH, and remove the system's copy of it"
        return fail(label, observed, need, do, "build.cuda_libraries")
    listed = ", ".join(f"{family} {'/'.join(sorted(versions[family]))}".strip() for family in sorted(places))
    return ok(label, f"each from one folder: {listed}")


def judge_openmp(mapped: set[str]) -> Check:
    """Judge whether more than one OpenMP is loaded: two pools of threads fight for the cores, or die of a fork."""
    kinds: dict[str, str] = {}
    for path in sorted(mapped):
        for kind in ("libgomp", "libiomp5", "libomp"):
            if os.path.basename(path).startswith((f"{kind}.", f"{kind}-")):
                kinds[path] = kind
    if len(set(kinds.values())) > 1:
        observed = f"two OpenMP runtimes in one process: {', '.join(sorted(kinds))}"
        do = "install torch and NumPy from one source; until then OMP_NUM_THREADS=1"
        return warn("OpenMP", observed, "one", do)
    return ok("OpenMP", ", ".join(sorted({os.path.basename(path) for path in kinds})) or "none mapped")


def judge_search_path(answer: dict[str, list[str]]) -> Check:
    """Judge the folders and files that the loader looks at before the wheel's."""
    searched = [path for path in answer["offers"] if any(f"lib{name}" in path for name in SEARCHED)]
    offers = list({os.path.realpath(path): path for path in reversed(searched)}.values())[::-1]  # links told once
    label = "library search path"
    if offers:
        observed = f"LD_LIBRARY_PATH offers {', '.join(offers[:3])}" + (
            f" and {len(offers) - 3} more" if offers[3:] else ""
        )
        need, do = "the wheel's own libraries", "unset LD_LIBRARY_PATH"
        return warn(label, observed, need, do, "build.cuda_libraries")
    if answer["preload"]:
        return warn(label, f"LD_PRELOAD={':'.join(answer['preload'])}", "none, unless on purpose", "unset LD_PRELOAD")
    return ok(label, "nothing comes before the wheel's libraries")


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
)  # fmt: skip
SURFACED = (
    "a CUDA error is told at the next call that waits: .cpu() before .item() cannot avoid an access that already "
    "happened; CUDA_LAUNCH_BLOCKING=1 names the call"
)


def smoke_probes(options: Options) -> list[Probe]:
    """Return the asks of step 6; a first convolution on a GPU loads cuDNN for up to 20 s from a cold disk."""
    probe = PROBES / "smoke_test.py"
    return [
        Probe(6, "smoke test: CPU", probe, "ladder", lambda a, f: judge_rungs("smoke test: CPU", a), 60,
            {"device": "cpu"}, 20, after=("import torch", "driver"), skip=skip_cpu, hang="hang.deadlock"),
        Probe(6, "smoke test: GPU", probe, "ladder", lambda a, f: judge_rungs("smoke test: GPU", a), 90,
            {"device": "cuda:0"}, 30, after=("driver", "import torch", "torch and the GPU"), skip=skip_gpu,
            hang="hang.gpu_kernel"),
    ]  # fmt: skip


def skip_cpu(facts: Facts) -> str | None:
    """Return why the processor cannot be tried: torch's backward asks a driver for its GPUs, used or not."""
    if "driver" not in facts and not torchless(facts):
        return "the driver did not answer, and torch's backward pass asks it on the CPU too: it would not return"
    return torchless(facts)


def skip_gpu(facts: Facts) -> str | None:
    """Return why there is no GPU to climb on."""
    why = torchless(facts) or (None if torch_facts(facts).get("hip") else no_gpu(facts))
    return why if why or torch_facts(facts).get("devices") else "torch sees no GPU, see step 4"


def judge_rungs(label: str, answers: Answers) -> Iterator[Check]:
    """Yield the finding on a ladder: how far it was climbed."""
    rungs: list[dict[str, Any]] = [answer for answer in answers if "rung" in answer]
    if not rungs:
        yield fail(label, "no rung was climbed", "an allocation", "ocrlab doctor")
        return
    broken = [rung for rung in rungs if not rung["ok"]]
    done = [rung["rung"] for rung in rungs if rung["ok"]]
    if not broken:
        seconds = sum(rung["seconds"] for rung in rungs)
        yield ok(
            label, f"{len(rungs)} of {len(rungs)} rungs, to a convolution step in fp32 and bf16, in {seconds:.1f} s"
        )
        return
    first = broken[0]
    cause, do = next(
        ((c, d) for pattern, c, d in RUNG_CAUSES if re.search(pattern, first["error"])), (None, "ocrlab doctor")
    )
    observed = f"fails at {first['rung']}: {first['error'].splitlines()[0]}; before it {len(done)} rungs were climbed"
    if "CUDA error" in first["error"]:
        observed += f". Note: {SURFACED}"
    yield fail(label, observed, "every result is the CPU's", do, None if label.endswith("CPU") else cause)


SLOW_LOADER = 30.0  # seconds; a spawned worker imports torch again
LOADER_CAUSES = {"fork": "loader.fork_deadlock", "spawn": "loader.hang_sample"}


def loader_probes(options: Options) -> list[Probe]:
    """Return the asks of the loader; a spawned worker imports torch anew, from a cold disk in half a minute."""
    return [
        Probe(10, f"DataLoader by {method}", PROBES / "dataloader_probe.py", "batches", judge_loader, 60,
            {"method": method}, 15, after=("import torch",), skip=torchless, hang=LOADER_CAUSES[method],
            crash="loader.worker_crash")
        for method in ("fork", "spawn")
    ]  # fmt: skip


def judge_loader(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the finding on one round trip."""
    [result] = [answer for answer in answers if "same" in answer]
    label, observed = (
        f"DataLoader by {result['method']}",
        f"{result['batches']} batches of 2 workers in {result['seconds']:.1f} s",
    )
    if not result["same"]:
        need = "the batches that were sent"
        yield fail(label, f"{observed}, and they differ from what was sent", need, "check the memory: memtest86+", None)
    elif result["seconds"] > SLOW_LOADER:
        do = "install the environment on a local disk; persistent_workers=True"
        yield warn(label, observed, f"less than {SLOW_LOADER:.0f} s", do)
    else:
        yield ok(label, observed)


SERVER = "https://api.wandb.ai"
OFF = ("disabled", "offline", "dryrun")
WAIT = 5.0  # seconds; a server that needs longer to accept a connection holds up every login
SLOW_TRACKER = 2.0  # seconds


def tracker_probes(options: Options) -> list[Probe]:
    """Return the ask of the tracker's server."""
    host, port, through = tracker_address(os.environ)
    arguments = {"address": host, "port": port, "timeout": WAIT}
    return [
        Probe(10, "tracker network", PROBES / "resource_limits.py", "network",
            lambda answers, facts: judge_tracker(host, port, through, answers), WAIT + 5, arguments, own=True,
            skip=lambda facts: tracking_off_reason(os.environ, Path.home() / ".netrc"), hang="tracker.network"),
    ]  # fmt: skip


def tracking_off_reason(environment: Mapping[str, str], netrc: Path) -> str | None:
    """Return why no tracker is used, or None where one is: by WANDB_MODE, by a key, or by a login that wandb kept."""
    mode = environment.get("WANDB_MODE", "").lower()
    if mode in OFF or environment.get("WANDB_DISABLED", "").lower() in ("1", "true"):
        return f"tracking is off (WANDB_MODE={mode or 'disabled'})"
    try:
        login = "wandb" in netrc.read_text(encoding="utf-8", errors="replace")
    except OSError:
        login = False
    if mode or environment.get("WANDB_API_KEY") or environment.get("WANDB_BASE_URL") or login:
        return None
    return "tracking is off: neither WANDB_MODE nor a key is set"


def tracker_address(environment: Mapping[str, str]) -> tuple[str, int, str]:
    """Return host and port to connect to, and whose they are: the server's or the proxy's in front of it."""
    server = urlsplit(environment.get("WANDB_BASE_URL") or SERVER)
    names = (f"{server.scheme}_proxy", f"{server.scheme}_proxy".upper())
    proxy = next((environment[name] for name in names if environment.get(name)), "")
    if proxy:
        place = urlsplit(proxy if "//" in proxy else f"//{proxy}")
        return place.hostname or "", place.port or 3128, f"the proxy for {server.hostname}"
    return server.hostname or "", server.port or (443 if server.scheme == "https" else 80), "the server"


def judge_tracker(host: str, port: int, through: str, answers: Answers) -> Iterator[Check]:
    """Yield the finding on the connection."""
    [answer] = answers
    label, where = "tracker network", f"{host}:{port} ({through})"
    do = "WANDB_MODE=offline, and `wandb sync` afterwards; or set https_proxy"
    if "error" in answer:
        observed = f"{where} cannot be reached: {answer['error']}"
        yield fail(label, observed, "a connection, or tracking offline", do, "tracker.network")
    elif answer["seconds"] > SLOW_TRACKER:
        yield warn(
            label, f"{where} took {answer['seconds']:.1f} s to answer", f"{SLOW_TRACKER:.0f} s", do, "tracker.network"
        )
    else:
        yield ok(label, f"{where} answers in {answer['seconds']:.2f} s")
