"""Step 1: the interpreter, and packages that are missing, mixed, left over or shadowed; nothing is imported for it."""

from __future__ import annotations

import os
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ocrlab.hardware.doctor.check_spec import PROBES, Answers, Facts, Options, Probe, fail, ok, version, warn
from ocrlab.hardware.installed_packages import STANDARD
from ocrlab.records import Check

OPENCV = ("opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless")
SELDOM = ("code", "parser", "profile", "symbol", "test")  # of Python's own modules, those that no training imports
TRAINS = {"torchvision": "torchvision", "numpy": "numpy", "cv2": "opencv-python"}  # module -> what provides it
PIN = re.compile(r"^(?P<name>[A-Za-z0-9_.-]+)\s*\(?==\s*(?P<version>[^;,)\s]+)\)?(?:\s*;\s*(?P<marker>.*))?$")


def asks(options: Options) -> list[Probe]:
    """Return the ask of step 1; the metadata of a thousand packages take a tenth of its time from a slow disk."""
    return [Probe(1, "packages", PROBES / "installed_packages.py", "facts", lambda a, f: judge(a, options.python), 20)]


def judge(answers: Answers, python: str) -> Iterator[Check]:
    """Yield the findings on the interpreter and on its packages; `python` is what it was called by."""
    [answer] = answers
    yield interpreter(answer["interpreter"])
    installed: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for distribution in answer["distributions"]:
        if all(
            distribution["version"] != other["version"] or distribution["place"] != other["place"]
            for other in installed[distribution["name"]]
        ):
            installed[distribution["name"]].append(distribution)
    yield torch(answer, python)
    yield missing(answer["found"], python)
    yield from pair(installed, python)
    yield mixed(answer, installed, python)
    yield shadowed(answer)


def interpreter(python: dict[str, Any]) -> Check:
    """Judge the interpreter itself."""
    kind = "its own environment" if python["environment"] else "the system's Python"
    observed = f"{python['implementation']} {python['version']}, {python['bits']} bit, {python['machine']}, {kind}"
    if python["bits"] != 64 or python["implementation"] != "CPython":
        return fail("interpreter", observed, "CPython, 64 bit: torch has no other wheels", "uv venv --python 3.12")
    if "PYTHONHOME" in python["variables"]:
        home = python["variables"]["PYTHONHOME"]
        return warn("interpreter", f"{observed}; PYTHONHOME={home}", "no PYTHONHOME", "unset PYTHONHOME")
    if "PYTHONPATH" in python["variables"]:
        observed += f"; PYTHONPATH={python['variables']['PYTHONPATH']} is searched first"
    return ok("interpreter", observed)


def torch(answer: dict[str, Any], python: str) -> Check:
    """Judge whether torch is there, and say which build."""
    installed = answer["torch"]
    if not installed:
        return fail("torch installed", "torch is not installed here", "torch", f"{python} -m pip install torch")
    build = (
        f"CUDA {installed['cuda']}"
        if installed.get("cuda")
        else f"ROCm {installed['hip']}"
        if installed.get("hip")
        else "CPU only"
    )
    return ok("torch installed", f"torch {installed.get('version', 'of unknown version')} for {build}")


def missing(origins: dict[str, str | None], python: str) -> Check:
    """Judge what else `ocrlab train` needs; other programs may do without."""
    absent = [package for module, package in TRAINS.items() if origins.get(module) is None]
    if absent:
        do = f"{python} -m pip install {' '.join(absent)}"
        return warn("packages present", f"not installed: {', '.join(absent)}", "needed by ocrlab train", do)
    return ok("packages present", ", ".join(["torch", *TRAINS] if origins.get("torch") else TRAINS))


def pair(installed: dict[str, list[dict[str, Any]]], python: str) -> Iterator[Check]:
    """Judge whether torch is the version that torchvision and torchaudio were built for, by what they require."""
    if "torch" not in installed:
        return
    have = installed["torch"][0]["version"]
    for name in ("torchvision", "torchaudio"):
        for distribution in installed.get(name, [])[:1]:
            pins = [pin for need in distribution["needs"] if (pin := PIN.match(need)) and pin["name"] == "torch"]
            label = f"torch and {name}"
            if pins and version(pins[0]["version"]) != version(have):
                observed = (
                    f"{name} {distribution['version']} was built for torch {pins[0]['version']}, installed is {have}"
                )
                do = f"{python} -m pip install --force-reinstall --no-deps {name}=={release(name, have)}"
                yield fail(label, observed, "the two of one release", do, "build.torchvision")
            elif build(have) != build(distribution["version"]) and build(have) and build(distribution["version"]):
                observed = f"torch {have}, {name} {distribution['version']}: built for different CUDA versions"
                do = f"reinstall both from the same index: uv pip install --torch-backend={build(have)} torch {name}"
                yield fail(label, observed, "the same CUDA version", do, "build.torchvision")
            else:
                yield ok(label, f"torch {have}, {name} {distribution['version']}")


def release(name: str, torch_version: str) -> str:
    """Return the release of torchvision (0.15 + n for torch 2.n) or torchaudio that belongs to a torch version."""
    major, minor, *_ = (*version(torch_version), 0, 0)
    return f"0.{minor + 15}.*" if name == "torchvision" and major == 2 else f"{major}.{minor}.*"


def build(text: str) -> str:
    """Return what stands after the plus of a version: cu126, cpu, rocm6.4."""
    return text.partition("+")[2]


def mixed(answer: dict[str, Any], installed: dict[str, list[dict[str, Any]]], python: str) -> Check:
    """Judge packages that are there twice, against each other, or half removed."""
    twice = [
        f"{name} {' and '.join(sorted({distribution['version'] for distribution in every}))}"
        for name, every in installed.items()
        if len({distribution["version"] for distribution in every}) > 1
    ]
    opencv = [name for name in OPENCV if name in installed]
    label = "packages mixed"
    if twice:
        names = " ".join(text.split()[0] for text in twice)
        do = f"{python} -m pip uninstall -y {names}, again until none is left; then {python} -m pip install {names}"
        return warn(label, f"installed twice: {'; '.join(twice)}; only the first is imported", "each package once", do)
    if len(opencv) > 1:
        do = f"{python} -m pip uninstall -y {' '.join(opencv)}; then {python} -m pip install {opencv[0]}"
        return warn(label, f"{' and '.join(opencv)} overwrite each other's files", "one of them", do)
    wrong = wrong_cuda(installed)
    if wrong:
        names = " ".join(f"{name}=={need}" for name, need, _ in wrong)
        observed = ", ".join(f"{name} {have} (torch needs {need})" for name, need, have in wrong)
        return warn(
            label, observed, "what torch was built with", f"{python} -m pip install {names}", "build.cuda_libraries"
        )
    if answer["leftovers"]:
        places = " ".join(f"'{place}'" for place in answer["leftovers"])
        return warn(label, f"left over from an interrupted pip: {places}", "none", f"rm -r {places}")
    both = "pytorch" in answer["conda"] and any(
        distribution["installer"] == "pip" for distribution in installed.get("torch", ())
    )
    if both:
        return warn(label, "torch is installed by conda and by pip", "one of them", "conda remove pytorch")
    return ok(label, f"{len(installed)} packages, each once")


def wrong_cuda(installed: dict[str, list[dict[str, Any]]]) -> list[tuple[str, str, str]]:
    """Return the CUDA packages whose version is not the one that torch requires, as (name, needed, installed)."""
    wrong = []
    for need in installed["torch"][0]["needs"] if installed.get("torch") else ():
        pin = PIN.match(need)
        name = re.sub(r"[-_.]+", "-", pin["name"]).lower() if pin else ""
        if pin and name.startswith(("nvidia-", "triton")) and installed.get(name):
            have = installed[name][0]["version"]
            if version(have) != version(pin["version"]):
                wrong.append((name, pin["version"], have))
    return wrong


def shadows(answer: dict[str, Any]) -> list[str]:
    """Return the files of the working folder and of PYTHONPATH that are imported instead of what was meant."""
    folders = [os.path.abspath(place) for place in answer["interpreter"]["variables"].get("PYTHONPATH", "").split(":")]
    folders = [folder for folder in folders if not os.path.isfile(f"{folder}/os.py")]  # Python's own library
    ours = [place for folder in folders for name in STANDARD if os.path.isfile(place := f"{folder}/{name}.py")]
    ours += [
        place
        for name, place in answer["found"].items()
        if place and os.path.dirname(place) in folders and os.path.basename(place) == f"{name}.py"
    ]
    return list(dict.fromkeys([*answer["shadows"], *ours]))


def shadowed(answer: dict[str, Any]) -> Check:
    """Judge files that are imported instead of what was meant: by torch or a training (fail), or hardly ever (warn)."""
    files = sorted(shadows(answer), key=harms, reverse=True)
    if files:
        observed = f"imported instead of the real module: {', '.join(files)}"
        judged = fail if harms(files[0]) else warn
        return judged("names shadowed", observed, "files with names of their own", away(files[0]))
    return ok("names shadowed", "no file of this folder hides a module")


def harms(place: str) -> bool:
    """Tell whether torch or a training imports the module that this file hides."""
    folder, name = os.path.split(place)
    return (os.path.basename(folder) if name == "__init__.py" else os.path.splitext(name)[0]) not in SELDOM


def away(place: str) -> str:
    """Return the command that gives a file, or the folder of a package, another name."""
    folder, name = os.path.split(place)
    old = folder if name == "__init__.py" else place
    stem, kind = os.path.splitext(old)
    return f"mv {shlex.quote(old)} {shlex.quote(f'{stem}_of_mine{kind}')}"


def first_cause(check: Check, facts: Facts) -> Check:
    """Return a finding with the remedy for a hidden module, where to install again would not help."""
    every = shadows(facts["packages"][0]) if facts.get("packages") else []
    harmful = [place for place in every if harms(place)]
    general = check.cause in (None, "build.torchvision") and ("install" in check.do or check.do.startswith("dmesg"))
    if not harmful or check.judgement != "fail" or not general:
        return check
    named = [place for place in harmful if f"{os.sep}{check.name.rpartition(' ')[2]}" in place]
    return replace(
        check, need="no file of your own with the name of a module", do=away((named or harmful)[0]), cause=None
    )
