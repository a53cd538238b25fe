"""Step 2: does each import return, how fast, and is what came the whole package? Each in a child of its own."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from typing import Any

from ocrlab.hardware.doctor.check_spec import PROBES, Answers, Facts, Options, Probe, fail, ok, skip, warn
from ocrlab.records import Check

SLOW = 15.0  # seconds; torch takes 2 from a warm disk and 8 from a cold one
MANY = 200  # files that are compiled again at each start: a second or more; torch has a thousand
NMS = [0, 2]  # of three boxes, the second of which overlaps the first by 0.68
REASONS = (  # what an ImportError says -> cause, what is needed, what mends it; the first that is found
    (
        r"lib(GL|GLX|EGL|gthread-2|glib-2|SM|Xext|Xrender)[\w.-]*: cannot open shared object",
        "build.system_libs",
        "OpenCV's system libraries, or the build that needs none",
        "{python} -m pip uninstall -y opencv-python && {python} -m pip install opencv-python-headless"
        "   (or: apt-get install libgl1 libglib2.0-0)",
    ),
    (
        r"lib(cu\w+|nv\w+|nccl|cudnn\w*)[\w.-]*: cannot open shared object|libcudnn|CUDNN",
        "build.cuda_libraries",
        "the CUDA packages that this torch was built with",
        "env -u LD_LIBRARY_PATH {python} -m pip install --force-reinstall torch",
    ),
    (
        r"GLIBC(XX)?_[\d.]+' not found|CXXABI_[\d.]+' not found|: cannot open shared object",
        "build.system_libs",
        "a newer C++ or C library than the one that is found first",
        "env -u LD_LIBRARY_PATH {python} -c 'import {name}'; in conda: conda install -c conda-forge libstdcxx-ng",
    ),
    (
        r"baseline optimizations|does not support|doesn't support",
        "build.cpu_isa",
        "a build for this processor",
        "{python} -m pip install --no-binary {name} {name}; in a virtual machine: qemu -cpu host",
    ),
    (r"undefined symbol", "build.abi", "a build for the torch that is installed", "reinstall {name} from source"),
    (
        r"_ARRAY_API not found|compiled using NumPy 1|numpy\.core\.multiarray failed",
        "build.abi",
        "packages that were built for the same NumPy",
        "{python} -m pip install 'numpy<2', or newer builds of what fails",
    ),
    (r"nms does not exist|Couldn't load custom C\+\+ ops", "build.torchvision", "the torchvision of this torch", ""),
    (
        r"partially initialized module|circular import",
        None,
        "no file of your own with the name of a package",
        "{python} -c 'import {name}; print({name})' in another folder; rename the file that hides it",
    ),
)


def asks(options: Options) -> list[Probe]:
    """Return the asks of step 2.

    torch may take a minute from a cold network disk; ten seconds without using the processor or reading anything are
    no slow disk. wandb is asked so that a tracker that hangs at import is found before a training waits for it.
    """
    probe = PROBES / "import_probe.py"

    def judged(name: str) -> Any:
        return lambda answers, facts: judge(name, answers, options.python)

    return [
        Probe(2, "import torch", probe, "torch", judged("torch"), 60, {}, 10, after=("packages",), skip=absent("torch"),
            hang="hang.import"),
        Probe(2, "import torchvision", probe, "torchvision", lambda a, f: torchvision(a, f, options.python), 60, {}, 10,
            after=("packages", "import torch"), skip=absent("torchvision", needs="import torch"), hang="hang.import",
            crash="build.torchvision"),
        Probe(2, "import cv2", probe, "imported", judged("cv2"), 30, {"name": "cv2"}, 8, after=("packages",),
            skip=absent("cv2"), hang="hang.import"),
        Probe(2, "import wandb", probe, "imported", judged("wandb"), 30, {"name": "wandb"}, 8, after=("packages",),
            skip=absent("wandb"), hang="hang.tracker"),
    ]  # fmt: skip


def absent(module: str, needs: str | None = None) -> Any:
    """Return a function that tells why a module need not be imported."""

    def why(facts: Facts) -> str | None:
        if "packages" in facts and facts["packages"][0]["found"].get(module) is None:
            return f"{module} is not installed"
        return torchless(facts) if needs else None

    return why


def torchless(facts: Facts) -> str | None:
    """Return why nothing that needs torch can be asked, or None where torch was imported."""
    if any(answer.get("imported") for answer in facts.get("import torch", ())):
        return None
    if "packages" in facts and facts["packages"][0]["found"].get("torch") is None:
        return "torch is not installed"
    return "torch cannot be imported, see step 2"


def torch_facts(facts: Facts) -> dict[str, Any]:
    """Return what torch said of its build, with what it sees of the GPUs; empty where it said nothing."""
    build: dict[str, Any] = {}
    for name in ("import torch", "torch and the GPU"):
        for answer in facts.get(name, ()):
            build |= answer.get("torch", {})
    return build


def judge(name: str, answers: Answers, python: str) -> Iterator[Check]:
    """Yield the finding on one import."""
    [result] = [answer for answer in answers if "imported" in answer]
    label = f"import {name}"
    if not result["imported"]:
        yield broken(label, name, result["error"], python)
    elif result.get("compiled", 0) > MANY:
        yield again(label, result, python)
    elif result["seconds"] > SLOW:
        observed = f"{name} {result['version']} took {result['seconds']:.1f} s"
        yield warn(label, observed, f"less than {SLOW:.0f} s", "install the environment on a local disk")
    else:
        version = f"{name} {result['version']}".strip()
        yield ok(label, f"{version} in {result['seconds']:.1f} s")


def again(label: str, answer: dict[str, Any], python: str) -> Check:
    """Return the finding that Python compiles a package anew at each start."""
    why, do = "Python could not write the result", 'export PYTHONPYCACHEPREFIX="$HOME/.cache/python"'
    if not answer["stored"]:
        why = "PYTHONDONTWRITEBYTECODE forbids to keep the result"
        do = f"{python} -m compileall -q {shlex.quote(os.path.dirname(os.path.dirname(answer['file'])))}"
    version = f"{answer['name']} {answer['version']}".strip()
    observed = (
        f"{version} in {answer['seconds']:.1f} s; {answer['compiled']} files were compiled for it, at each start: {why}"
    )
    return warn(label, observed, "compiled files that are kept", do)


def broken(label: str, name: str, error: dict[str, Any], python: str) -> Check:
    """Return the finding on an import that raised, with the cause where the message names it."""
    message = f"{error['type']}: {error['message']}"
    observed = f"{message[:300]} ({'/'.join(str(error['where']).split('/')[-3:])})"
    gone = re.search(r"No module named '([\w.]+)'", message)
    if gone:
        package = gone[1].split(".")[0]
        return fail(label, observed, f"the package {package}", f"{python} -m pip install {package}")
    for pattern, cause, need, do in REASONS:
        if re.search(pattern, message):
            command = do.format(python=python, name=name) or reinstall(python)
            return fail(label, observed, need, command, cause)
    return fail(label, observed, f"import {name} returns", f"{python} -m pip install --force-reinstall {name}")


def reinstall(python: str) -> str:
    """Return the command that brings torch and torchvision together again."""
    return f"{python} -m pip install --force-reinstall torch torchvision"


def torchvision(answers: Answers, facts: Facts, python: str) -> Iterator[Check]:
    """Yield the findings on torchvision: its import, and whether its compiled operators fit this torch."""
    yield from judge("torchvision", answers, python)
    label, need = "torchvision.ops.nms", "its compiled operators, built for this torch"
    for answer in answers:
        if "nms" not in answer:
            continue
        if answer["nms"] is None:
            error = answer["error"]
            observed = f"{error['type']}: {error['message'][:200]}"
            yield fail(label, observed, need, reinstall(python), "build.torchvision")
        elif answer["nms"] != NMS:
            yield fail(
                label, f"kept boxes {answer['nms']} instead of {NMS}", need, reinstall(python), "build.torchvision"
            )
        else:
            yield ok(label, "called, and the right boxes were kept")
    if not any("nms" in answer for answer in answers):
        yield skip(label, "torchvision cannot be imported")
