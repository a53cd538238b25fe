"""Steps 1 and 2: the interpreter, its packages, and whether each import returns, fast and complete."""

from __future__ import annotations

import os
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from ocrlab.hardware.doctor.check_spec import (
    PROBES,
    Answer,
    Facts,
    Options,
    Probe,
    fail,
    judge,
    skip,
    version,
    warn,
)
from ocrlab.hardware.installed_packages import STANDARD
from ocrlab.records import Check

OPENCV = ("opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless")
SELDOM = ("code", "parser", "profile", "symbol", "test")  # of Python's own modules, those that no training imports
TRAINS = {"torchvision": "torchvision", "numpy": "numpy", "cv2": "opencv-python"}  # module -> what provides it
PIN = re.compile(r"^(?P<name>[A-Za-z0-9_.-]+)\s*\(?==\s*(?P<version>[^;,)\s]+)\)?(?:\s*;\s*(?P<marker>.*))?$")
SLOW_IMPORT = 15.0  # seconds; torch takes 2 from a warm disk and 8 from a cold one
NMS = [0, 2]  # of three boxes, the second of which overlaps the first by 0.68

Installed = dict[str, list[dict[str, Any]]]  # the distributions of each name, in the order of the search path


def package_probes(options: Options) -> list[Probe]:
    """Return the probes of steps 1 and 2.

    The metadata of a thousand packages take a tenth of their time from a slow disk. torch may take a minute from a cold
    network disk; a slow disk does not explain ten seconds without CPU time or reading. wandb is imported so that
    a tracker that hangs at import is found before a training waits for it.
    """
    probe, python = PROBES / "torch_probe.py", options.python

    def imported(name: str, hang: str) -> Probe:
        return Probe(2, f"import {name}", probe, "imported", partial(judge_import, name, python), 30,
            {"name": name}, 8, after=("packages",), skip=partial(not_installed, name), hang=hang)  # fmt: skip

    return [
        Probe(1, "packages", PROBES / "installed_packages.py", "facts", partial(judge_packages, python), 20),
        Probe(2, "import torch", probe, "torch", partial(judge_import, "torch", python), 60, {}, 10,
            after=("packages",), skip=partial(not_installed, "torch"), hang="hang.import"),
        Probe(2, "import torchvision", probe, "torchvision", partial(judge_torchvision, python), 60, {}, 10,
            after=("packages", "import torch"), hang="hang.import", crash="build.torchvision",
            skip=lambda facts: not_installed("torchvision", facts) or torchless(facts)),
        imported("cv2", "hang.import"),
        imported("wandb", "hang.tracker"),
    ]  # fmt: skip


def not_installed(module: str, facts: Facts) -> str | None:
    """Return why a module need not be imported: it is not there."""
    missing = "packages" in facts and facts["packages"]["found"].get(module) is None
    return f"{module} is not installed" if missing else None


def torchless(facts: Facts) -> str | None:
    """Return why nothing that needs torch can be asked, or None where torch was imported."""
    if facts.get("import torch", {}).get("imported"):
        return None
    return not_installed("torch", facts) or "torch cannot be imported, see step 2"


def torch_facts(facts: Facts) -> dict[str, Any]:
    """Return what torch said of its build, with what it sees of the GPUs; empty where it said nothing."""
    probes = (facts.get(name, {}) for name in ("import torch", "torch and the GPU"))
    return {key: value for answer in probes for key, value in answer.get("torch", {}).items()}


def judge_packages(python: str, answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the findings on the interpreter and on its packages; `python` is what it was called by."""
    yield judge_interpreter(answer["interpreter"])
    torch, origins = answer["torch"], answer["found"]
    cuda, hip = torch.get("cuda"), torch.get("hip")
    build = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPU only"
    yield judge(
        "torch installed",
        f"torch {torch.get('version', 'of unknown version')} for {build}" if torch else "torch is not installed here",
        need="torch",
        do=f"{python} -m pip install torch",
        fails=not torch,
    )
    absent = [package for module, package in TRAINS.items() if origins.get(module) is None]
    yield judge(
        "packages present",
        f"not installed: {', '.join(absent)}" if absent else ", ".join(TRAINS),
        need="needed by ocrlab train",  # other programs may do without
        do=f"{python} -m pip install {' '.join(absent)}",
        warns=bool(absent),
    )
    installed: Installed = defaultdict(list)
    for each in {(d["name"], d["version"], d["place"]): d for d in answer["distributions"]}.values():
        installed[each["name"]].append(each)
    yield from judge_pairs(installed, python)
    yield judge_mixed(answer, installed, python)
    files = sorted(shadowing_files(answer), key=is_harmful, reverse=True)
    yield judge(
        "names shadowed",
        f"imported instead of the real module: {', '.join(files)}"
        if files
        else "no file of this folder hides a module",
        need="files with names of their own",
        do=rename_command(files[0]) if files else "",
        fails=any(map(is_harmful, files)),
        warns=bool(files),
    )


def judge_interpreter(python: dict[str, Any]) -> Check:
    """Judge the interpreter itself."""
    kind = "in a virtual environment" if python["environment"] else "the system's Python"
    observed = f"{python['implementation']} {python['version']}, {python['bits']} bit, {python['machine']}, {kind}"
    observed += "".join(f"; {name}={value}" for name, value in python["variables"].items())
    if python["bits"] != 64 or python["implementation"] != "CPython":
        return fail("interpreter", observed, "CPython, 64 bit: torch has no other wheels", "uv venv --python 3.12")
    home = "PYTHONHOME" in python["variables"]
    return judge("interpreter", observed, "no PYTHONHOME", "unset PYTHONHOME", warns=home)


def judge_pairs(installed: Installed, python: str) -> Iterator[Check]:
    """Judge whether torch is the version that torchvision and torchaudio were built for, by what they require."""
    for name in ("torchvision", "torchaudio"):
        if not (installed.get("torch") and installed.get(name)):
            continue
        have, other = installed["torch"][0]["version"], installed[name][0]["version"]
        pins = [pin for need in installed[name][0]["needs"] if (pin := PIN.match(need)) and pin["name"] == "torch"]
        backend, other_backend = have.partition("+")[2], other.partition("+")[2]  # cu126, cpu, rocm6.4
        if pins and version(pins[0]["version"]) != version(have):
            # torchvision 0.15 + n belongs to torch 2.n; torchaudio has torch's numbers.
            major, minor, *_ = (*version(have), 0, 0)
            release = f"0.{minor + 15}.*" if name == "torchvision" and major == 2 else f"{major}.{minor}.*"
            yield fail(
                f"torch and {name}",
                f"{name} {other} was built for torch {pins[0]['version']}, installed is {have}",
                need="the two of one release",
                do=f"{python} -m pip install --force-reinstall --no-deps {name}=={release}",
                cause="build.torchvision",
            )
        else:
            differ = bool(backend and other_backend) and backend != other_backend
            yield judge(
                f"torch and {name}",
                f"torch {have}, {name} {other}" + (": built for different CUDA versions" if differ else ""),
                need="the same CUDA version",
                do=f"reinstall both from the same index: uv pip install --torch-backend={backend} torch {name}",
                cause="build.torchvision",
                fails=differ,
            )


def judge_mixed(answer: dict[str, Any], installed: Installed, python: str) -> Check:
    """Judge packages that are there twice, against each other, or half removed."""
    label, pip = "packages mixed", f"{python} -m pip"
    versions = {name: sorted({each["version"] for each in every}) for name, every in installed.items()}
    twice = {name: " and ".join(each) for name, each in versions.items() if len(each) > 1}
    if twice:
        listed, names = "; ".join(f"{name} {each}" for name, each in twice.items()), " ".join(twice)
        do = f"{pip} uninstall -y {names}, again until none is left; then {pip} install {names}"
        return warn(label, f"installed twice: {listed}; only the first is imported", "each package once", do)
    opencv = [name for name in OPENCV if name in installed]
    if len(opencv) > 1:
        do = f"{pip} uninstall -y {' '.join(opencv)}; then {pip} install {opencv[0]}"
        return warn(label, f"{' and '.join(opencv)} overwrite each other's files", "one of them", do)
    torch = installed.get("torch", [])
    wrong = {}  # CUDA packages whose version is not the one that torch requires: what is installed, by what is needed
    for pin in filter(None, map(PIN.match, torch[0]["needs"] if torch else ())):
        name = re.sub(r"[-_.]+", "-", pin["name"]).lower()
        have = installed[name][0]["version"] if installed.get(name) and name.startswith(("nvidia-", "triton")) else ""
        if have and version(have) != version(pin["version"]):
            wrong[f"{name}=={pin['version']}"] = f"{name} {have} (torch needs {pin['version']})"
    if wrong:
        do = f"{pip} install {' '.join(wrong)}"
        return warn(label, ", ".join(wrong.values()), "what torch was built with", do, "build.cuda_libraries")
    if answer["leftovers"]:
        places = " ".join(f"'{place}'" for place in answer["leftovers"])
        return warn(label, f"left over from an interrupted pip: {places}", "none", f"rm -r {places}")
    both = "pytorch" in answer["conda"] and any(each["installer"] == "pip" for each in torch)
    observed = "torch is installed by conda and by pip" if both else f"{len(installed)} packages, each once"
    return judge(label, observed, "one of them", "conda remove pytorch", warns=both)


def shadowing_files(answer: dict[str, Any]) -> list[str]:
    """Return the files of the working folder and of PYTHONPATH that are imported instead of what was meant."""
    folders = [os.path.abspath(place) for place in answer["interpreter"]["variables"].get("PYTHONPATH", "").split(":")]
    folders = [folder for folder in folders if not os.path.isfile(f"{folder}/os.py")]  # Python's own library
    standard = [place for folder in folders for name in STANDARD if os.path.isfile(place := f"{folder}/{name}.py")]
    packages = [place for name, place in answer["found"].items() if place in [f"{f}/{name}.py" for f in folders]]
    return list(dict.fromkeys([*answer["shadows"], *standard, *packages]))


def is_harmful(place: str) -> bool:
    """Return whether torch or a training imports the module that this file hides."""
    folder, name = os.path.split(place)
    return (os.path.basename(folder) if name == "__init__.py" else os.path.splitext(name)[0]) not in SELDOM


def rename_command(place: str) -> str:
    """Return the command that gives a file, or the folder of a package, another name."""
    folder, name = os.path.split(place)
    old = folder if name == "__init__.py" else place
    stem, kind = os.path.splitext(old)
    return f"mv {shlex.quote(old)} {shlex.quote(f'{stem}_of_mine{kind}')}"


def explain_by_shadowing(check: Check, facts: Facts) -> Check:
    """Return a finding with the remedy for a hidden module, where to install again would not help."""
    every = shadowing_files(facts["packages"]) if facts.get("packages") else []
    harmful = [place for place in every if is_harmful(place)]
    general = check.cause in (None, "build.torchvision") and ("install" in check.do or check.do.startswith("dmesg"))
    if not harmful or check.judgement != "fail" or not general:
        return check
    named = [place for place in harmful if f"{os.sep}{check.name.rpartition(' ')[2]}" in place]
    need, do = "no file of your own with the name of a module", rename_command((named or harmful)[0])
    return replace(check, need=need, do=do, cause=None)


REINSTALL = "{python} -m pip install --force-reinstall torch torchvision"
REASONS = (  # what an ImportError says -> cause, what is needed, what fixes it; the first that is found
    (r"lib(GL|GLX|EGL|gthread-2|glib-2|SM|Xext|Xrender)[\w.-]*: cannot open shared object",
     "build.system_libs", "OpenCV's system libraries, or the build that needs none",
     "{python} -m pip uninstall -y opencv-python && {python} -m pip install opencv-python-headless"
     "   (or: apt-get install libgl1 libglib2.0-0)"),
    (r"lib(cu\w+|nv\w+|nccl|cudnn\w*)[\w.-]*: cannot open shared object|libcudnn|CUDNN",
     "build.cuda_libraries", "the CUDA packages that this torch was built with",
     "env -u LD_LIBRARY_PATH {python} -m pip install --force-reinstall torch"),
    (r"GLIBC(XX)?_[\d.]+' not found|CXXABI_[\d.]+' not found|: cannot open shared object",
     "build.system_libs", "a newer C++ or C library than the one that is found first",
     "env -u LD_LIBRARY_PATH {python} -c 'import {name}'; in conda: conda install -c conda-forge libstdcxx-ng"),
    (r"baseline optimizations|does not support|doesn't support",
     "build.cpu_isa", "a build for this processor",
     "{python} -m pip install --no-binary {name} {name}; in a virtual machine: qemu -cpu host"),
    (r"undefined symbol", "build.abi", "a build for the torch that is installed", "reinstall {name} from source"),
    (r"_ARRAY_API not found|compiled using NumPy 1|numpy\.core\.multiarray failed",
     "build.abi", "packages that were built for the same NumPy",
     "{python} -m pip install 'numpy<2', or newer builds of what fails"),
    (r"nms does not exist|Couldn't load custom C\+\+ ops",
     "build.torchvision", "the torchvision of this torch", REINSTALL),
    (r"partially initialized module|circular import",
     None, "no file of your own with the name of a package",
     "{python} -c 'import {name}; print({name})' in another folder; rename the file that hides it"),
    (r"", None, "import {name} returns", "{python} -m pip install --force-reinstall {name}"),
)  # fmt: skip


def judge_import(name: str, python: str, answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the finding on one import."""
    if answer["imported"]:
        yield judge(
            f"import {name}",
            f"{name} {answer['version']}".strip() + f" in {answer['seconds']:.1f} s",
            need=f"less than {SLOW_IMPORT:.0f} s",
            do="install the environment on a local disk",
            warns=answer["seconds"] > SLOW_IMPORT,
        )
    else:
        yield failed_import(f"import {name}", name, answer["error"], python)


def failed_import(label: str, name: str, error: dict[str, Any], python: str) -> Check:
    """Return the finding on an import that raised, with the cause where the message names it."""
    message = f"{error['type']}: {error['message']}"
    observed = f"{message[:300]} ({'/'.join(str(error['where']).split('/')[-3:])})"
    absent = re.search(r"No module named '([\w.]+)'", message)
    if absent:
        package = absent[1].split(".")[0]
        return fail(label, observed, f"the package {package}", f"{python} -m pip install {package}")
    cause, need, do = next(reason for pattern, *reason in REASONS if re.search(pattern, message))
    return fail(label, observed, str(need).format(name=name), str(do).format(python=python, name=name), cause)


def judge_torchvision(python: str, answer: Answer, facts: Facts) -> Iterator[Check]:
    """Yield the findings on torchvision: its import, and whether its compiled operators fit this torch."""
    yield from judge_import("torchvision", python, answer, facts)
    if "nms" not in answer:
        yield skip("torchvision.ops.nms", "torchvision cannot be imported")
        return
    observed = "called, and it returned the right boxes"
    if answer["nms"] is None:
        observed = f"{answer['error']['type']}: {answer['error']['message'][:200]}"
    elif answer["nms"] != NMS:
        observed = f"returned boxes {answer['nms']} instead of {NMS}"
    yield judge(
        "torchvision.ops.nms",
        observed,
        need="its compiled operators, built for this torch",
        do=REINSTALL.format(python=python),
        cause="build.torchvision",
        fails=answer["nms"] != NMS,
    )
