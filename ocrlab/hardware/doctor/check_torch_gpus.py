"""Step 4, second half: does torch see the GPUs that the driver shows, and has it kernels for them?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ocrlab.hardware.doctor import check_driver as drivers
from ocrlab.hardware.doctor.check_imports import torch_facts, torchless
from ocrlab.hardware.doctor.check_spec import PROBES, Answers, Facts, Options, Probe, fail, ok, skip, warn
from ocrlab.records import Check

MESSAGE = 200  # characters of torch's own words
QUESTION = "Did you run some cuda functions before calling NumCudaDevices() that might have already set an error?"
ARCH = re.compile(r"^(?P<kind>sm|compute)_(?P<major>\d+)(?P<minor>\d)(?P<exact>[af]?)$")


def asks(options: Options) -> list[Probe]:
    """Return the ask of torch's first CUDA call, apart from the import: this is where a sick driver hangs."""
    return [
        Probe(4, "torch and the GPU", PROBES / "import_probe.py", "torch_cuda", judge, 60, {}, 20,
            after=("driver", "import torch"), skip=needless, hang="hang.cuda_init", crash="driver.state"),
    ]  # fmt: skip


def needless(facts: Facts) -> str | None:
    """Return why torch need not be asked: it is not there, or there is nothing that it could see."""
    kernel, library = drivers.merged(facts.get("driver", []))
    if torch_facts(facts).get("hip"):
        return None  # AMD's cards speak through torch.cuda too
    if "driver" in facts and not library["loaded"]:
        return "no driver that torch could use" if kernel["cards"] or kernel["dxg"] else "no NVIDIA GPU on this machine"
    if "driver" not in facts:
        return "the driver did not answer, see above: torch would not return either"
    return torchless(facts)


def judge(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the findings on torch's view of the GPUs and on the architectures it was built for."""
    gpus: dict[str, Any] = {}
    for answer in answers:
        gpus |= answer.get("torch", {})
    build = {**torch_facts(facts), **gpus}
    if not gpus["devices"]:
        message = gpus["said"] or "; ".join(gpus["warned"]) or "torch.cuda.is_available() is False"
        message = " ".join(message.replace(QUESTION, " ").split())
        observed = message[:MESSAGE] + ("…" if len(message) > MESSAGE else "")
        yield fail("torch and the GPU", observed, "torch sees the GPU", remedy(facts), cause(message))
        return
    yield ok("torch and the GPU", f"torch sees {len(gpus['devices'])}: {gpus['devices'][0]['name']}")
    for number, device in enumerate(gpus["devices"]):
        yield architecture(
            f"kernels for GPU {number}", tuple(device["capability"]), build.get("arch_list") or [], build
        )


def remedy(facts: Facts) -> str:
    """Return what mends a driver that torch complains about: the same as for the driver itself."""
    checks = drivers.judge(facts["driver"], facts) if "driver" in facts else ()
    return next((check.do for check in checks if check.judgement == "fail"), "nvidia-smi; dmesg | grep -i nvrm")


def cause(message: str) -> str:
    """Return the cause that torch's own message on a failed initialisation names."""
    for pattern, name in (
        (r"Found no NVIDIA driver", "driver.none"),
        (r"driver on your system is too old|insufficient", "driver.too_old"),
        (r"No CUDA GPUs|Error 100|Error 101|no CUDA-capable|invalid device ordinal", "driver.no_visible_device"),
        (r"Error 46|busy or unavailable", "driver.device_busy"),
        (r"Error 214|uncorrectable ECC", "hw.gpu"),
        (r"not compiled with CUDA|without CUDA", "build.cpu_only"),
    ):
        if re.search(pattern, message):
            return name
    return "driver.state"


def architecture(label: str, capability: tuple[int, ...], arch_list: list[str], build: dict[str, Any]) -> Check:
    """Judge whether torch has machine code for a GPU, or at least PTX that the driver can compile for it.

    A cubin of sm_XY runs on X.Z with Z >= Y; PTX of compute_XY on anything newer (CUDA programming guide).
    """
    matches = [text for text in map(ARCH.match, arch_list) if text]
    have, need = ".".join(map(str, capability)), f"sm_{capability[0]}{capability[1]} in torch.cuda.get_arch_list()"
    listed = " ".join(arch_list)
    observed = f"compute capability {have}; torch {build.get('version', '')} has {listed}"
    if not matches:
        return skip(label, f"compute capability {have}; torch names no architectures")
    exact = [(int(arch["major"]), int(arch["minor"])) for arch in matches if arch["kind"] == "sm"]
    if any(major == capability[0] and minor <= capability[1] for major, minor in exact):
        return ok(label, observed)
    newest, oldest = max(exact, default=(0, 0)), min(exact, default=(0, 0))
    ptx = [
        (int(arch["major"]), int(arch["minor"])) for arch in matches if arch["kind"] == "compute" and not arch["exact"]
    ]
    if any(arch <= capability for arch in ptx):
        do = (
            "expect a first call that takes minutes; better a newer torch: uv pip install -U --torch-backend=auto torch"
        )
        return warn(label, f"{observed}; only PTX fits", need, do, "build.arch")
    if capability > newest:
        do = "a newer torch: uv pip install --upgrade --torch-backend=auto torch torchvision"
    else:
        do = f"a build for older cards (this one begins at sm_{oldest[0]}{oldest[1]}): "
        do += "uv pip install --reinstall --torch-backend=cu126 torch torchvision"
    return fail(label, observed, need, do, "build.arch")
