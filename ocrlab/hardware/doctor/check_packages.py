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
    ok,
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
MANY = 200  # files that are compiled again at each start: a second or more; torch has a thousand
NMS = [0, 2]  # of three boxes, the second of which overlaps the first by 0.68

Installed = dict[str, list[dict[str, Any]]]  # the distributions of each name, in the order of the search path


def package_probes(options: Options) -> list[Probe]:
    """Return the probes of steps 1 and 2.

    The metadata of a thousand packages take a tenth of their time from a slow disk. torch may take a minute from a cold
    network disk; a slow disk does not explain ten seconds without CPU time or reading. wandb is imported so that
    a tracker that hangs at import is found before a training waits for it.
    """
    probe, python = PROBES / "import_probe.py", options.python

    def imported(name: str, hang: str) -> Probe:
        return Probe(2, f"import {name}", probe, "imported", lambda a, f: judge_import(name, a, python), 30,
            {"name": name}, 8, after=("packages",), skip=partial(not_installed, name), hang=hang)  # fmt: skip

    return [
        Probe(1, "packages", PROBES / "installed_packages.py", "facts", lambda a, f: judge_packages(a, python), 20),
        Probe(2, "import torch", probe, "torch", lambda a, f: judge_import("torch", a, python), 60, {}, 10,
            after=("packages",), skip=partial(not_installed, "torch"), hang="hang.import"),
        Probe(2, "import torchvision", probe, "torchvision", lambda a, f: judge_torchvision(a, f, python), 60, {}, 10,
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


def judge_packages(answer: Answer, python: str) -> Iterator[Check]:
    """Yield the findings on the interpreter and on its packages; `python` is what it was called by."""
    yield judge_interpreter(answer["interpreter"])
    torch, origins = answer["torch"], answer["found"]
    if torch:
        cuda, hip = torch.get("cuda"), torch.get("hip")
        build = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPU only"
        yield ok("torch installed", f"torch {torch.get('version', 'of unknown version')} for {build}")
    else:
        yield fail("torch installed", "torch is not installed here", "torch", f"{python} -m pip install torch")
    absent = [package for module, package in TRAINS.items() if origins.get(module) is None]
    if absent:  # other programs than `ocrlab train` may do without
        do = f"{python} -m pip install {' '.join(absent)}"
        yield warn("packages present", f"not installed: {', '.join(absent)}", "needed by ocrlab train", do)
    else:
        yield ok("packages present", ", ".join(["torch", *TRAINS] if origins.get("torch") else TRAINS))
    installed: Installed = defaultdict(list)
    for distribution in answer["distributions"]:
        others = [(other["version"], other["place"]) for other in installed[distribution["name"]]]
        if (distribution["version"], distribution["place"]) not in others:
            installed[distribution["name"]].append(distribution)
    yield from judge_pairs(installed, python)
    yield judge_mixed(answer, installed, python)
    files = sorted(shadowing_files(answer), key=is_harmful, reverse=True)
    if files:
        observed = f"imported instead of the real module: {', '.join(files)}"
        judged = fail if is_harmful(files[0]) else warn
        yield judged("names shadowed", observed, "files with names of their own", rename_command(files[0]))
    else:
        yield ok("names shadowed", "no file of this folder hides a module")


def judge_interpreter(python: dict[str, Any]) -> Check:
    """Judge the interpreter itself."""
    kind = "in a virtual environment" if python["environment"] else "the system's Python"
    observed = f"{python['implementation']} {python['version']}, {python['bits']} bit, {python['machine']}, {kind}"
    variables = python["variables"]
    if python["bits"] != 64 or python["implementation"] != "CPython":
        return fail("interpreter", observed, "CPython, 64 bit: torch has no other wheels", "uv venv --python 3.12")
    if "PYTHONHOME" in variables:
        observed += f"; PYTHONHOME={variables['PYTHONHOME']}"
        return warn("interpreter", observed, "no PYTHONHOME", "unset PYTHONHOME")
    if "PYTHONPATH" in variables:
        observed += f"; PYTHONPATH={variables['PYTHONPATH']} is searched first"
    return ok("interpreter", observed)


def judge_pairs(installed: Installed, python: str) -> Iterator[Check]:
    """Judge whether torch is the version that torchvision and torchaudio were built for, by what they require."""
    for name in ("torchvision", "torchaudio"):
        if not (installed.get("torch") and installed.get(name)):
            continue
        have, other = installed["torch"][0]["version"], installed[name][0]["version"]
        pins = [pin for need in installed[name][0]["needs"] if (pin := PIN.match(need)) and pin["name"] == "torch"]
        label, backend, other_backend = f"torch and {name}", have.partition("+")[2], other.partition("+")[2]
        if pins and version(pins[0]["version"]) != version(have):
            # torchvision 0.15 + n belongs to torch 2.n; torchaudio has torch's numbers.
            major, minor, *_ = (*version(have), 0, 0)
            release = f"0.{minor + 15}.*" if name == "torchvision" and major == 2 else f"{major}.{minor}.*"
            observed = f"{name} {other} was built for torch {pins[0]['version']}, installed is {have}"
            do = f"{python} -m pip install --force-reinstall --no-deps {name}=={release}"
            yield fail(label, observed, "the two of one release", do, "build.torchvision")
        elif backend and other_backend and backend != other_backend:  # cu126, cpu, rocm6.4
            observed = f"torch {have}, {name} {other}: built for different CUDA versions"
            do = f"reinstall both from the same index: uv pip install --torch-backend={backend} torch {name}"
            yield fail(label, observed, "the same CUDA version", do, "build.torchvision")
        else:
            yield ok(label, f"torch {have}, {name} {other}")


def judge_mixed(answer: dict[str, Any], installed: Installed, python: str) -> Check:
    """Judge packages that are there twice, against each other, or half removed."""
    label, pip = "packages mixed", f"{python} -m pip"
    twice = {name: sorted({each["version"] for each in every}) for name, every in installed.items()}
    twice = {name: versions for name, versions in twice.items() if len(versions) > 1}
    if twice:
        listed = "; ".join(f"{name} {' and '.join(versions)}" for name, versions in twice.items())
        names = " ".join(twice)
        do = f"{pip} uninstall -y {names}, again until none is left; then {pip} install {names}"
        return warn(label, f"installed twice: {listed}; only the first is imported", "each package once", do)
    opencv = [name for name in OPENCV if name in installed]
    if len(opencv) > 1:
        do = f"{pip} uninstall -y {' '.join(opencv)}; then {pip} install {opencv[0]}"
        return warn(label, f"{' and '.join(opencv)} overwrite each other's files", "one of them", do)
    torch = installed.get("torch", [])
    wrong = []  # CUDA packages whose version is not the one that torch requires: name, needed, installed
    for pin in filter(None, map(PIN.match, torch[0]["needs"] if torch else ())):
        name = re.sub(r"[-_.]+", "-", pin["name"]).lower()
        if name.startswith(("nvidia-", "triton")) and installed.get(name):
            have = installed[name][0]["version"]
            if version(have) != version(pin["version"]):
                wrong.append((name, pin["version"], have))
    if wrong:
        observed = ", ".join(f"{name} {have} (torch needs {need})" for name, need, have in wrong)
        do = f"{pip} install {' '.join(f'{name}=={need}' for name, need, _ in wrong)}"
        return warn(label, observed, "what torch was built with", do, "build.cuda_libraries")
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


def judge_import(name: str, answer: Answer, python: str) -> Iterator[Check]:
    """Yield the finding on one import."""
    label = f"import {name}"
    if not answer["imported"]:
        yield failed_import(label, name, answer["error"], python)
        return
    observed, seconds = f"{name} {answer['version']}".strip(), f"{answer['seconds']:.1f} s"
    if answer.get("compiled", 0) > MANY:
        why, do = "Python could not write the result", 'export PYTHONPYCACHEPREFIX="$HOME/.cache/python"'
        if not answer["stored"]:
            why = "PYTHONDONTWRITEBYTECODE keeps it from storing the result"
            do = f"{python} -m compileall -q {shlex.quote(os.path.dirname(os.path.dirname(answer['file'])))}"
        observed += f" in {seconds}; {answer['compiled']} files were compiled for it, at each start: {why}"
        yield warn(label, observed, "compiled files that are stored", do)
    elif answer["seconds"] > SLOW_IMPORT:
        do = "install the environment on a local disk"
        yield warn(label, f"{observed} took {seconds}", f"less than {SLOW_IMPORT:.0f} s", do)
    else:
        yield ok(label, f"{observed} in {seconds}")


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


def judge_torchvision(answer: Answer, facts: Facts, python: str) -> Iterator[Check]:
    """Yield the findings on torchvision: its import, and whether its compiled operators fit this torch."""
    yield from judge_import("torchvision", answer, python)
    label = "torchvision.ops.nms"
    if "nms" not in answer:
        yield skip(label, "torchvision cannot be imported")
        return
    observed = "called, and it returned the right boxes"
    if answer["nms"] is None:
        observed = f"{answer['error']['type']}: {answer['error']['message'][:200]}"
    elif answer["nms"] != NMS:
        observed = f"returned boxes {answer['nms']} instead of {NMS}"
    need, do = "its compiled operators, built for this torch", REINSTALL.format(python=python)
    yield judge(label, observed, need, do, "build.torchvision", fails=answer["nms"] != NMS)
