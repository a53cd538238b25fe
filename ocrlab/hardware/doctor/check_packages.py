"""Step 1: the interpreter, and packages that are missing, mixed, left over or shadowed; nothing is imported for it."""

from __future__ import annotations

import os
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ocrlab.hardware.doctor.check_spec import PROBES, Answers, Ask, Facts, Options, fail, ok, version, warn
from ocrlab.hardware.installed_packages import STANDARD
from ocrlab.records import Check

OPENCV = ("opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless")
SELDOM = ("code", "parser", "profile", "symbol", "test")  # of Python's own modules, those that no training imports
TRAINS = {"torchvision": "torchvision", "numpy": "numpy", "cv2": "opencv-python"}  # module -> what provides it
PIN = re.compile(r"^(?P<name>[A-Za-z0-9_.-]+)\s*\(?==\s*(?P<version>[^;,)\s]+)\)?(?:\s*;\s*(?P<marker>.*))?$")


def asks(options: Options) -> list[Ask]:
    """Return the ask of step 1; the metadata of a thousand packages take a tenth of its time from a slow disk."""
    return [Ask(1, "packages", PROBES / "installed_packages.py", "facts", lambda a, f: judge(a, options.python), 20)]


def judge(answers: Answers, python: str) -> Iterator[Check]:
    """Yield the findings on the interpreter and on its packages; `python` is what it was called by."""
    [told] = answers
    yield interpreter(told["interpreter"])
    installed: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in told["distributions"]:
        if all(
            one["version"] != other["version"] or one["place"] != other["place"] for other in installed[one["name"]]
        ):
            installed[one["name"]].append(one)
    yield torch(told, python)
    yield missing(told["found"], python)
    yield from pair(installed, python)
    yield mixed(told, installed, python)
    yield shadowed(told)


def interpreter(told: dict[str, Any]) -> Check:
    """Judge the interpreter itself."""
    kind = "its own environment" if told["environment"] else "the system's Python"
    seen = f"{told['implementation']} {told['version']}, {told['bits']} bit, {told['machine']}, {kind}"
    if told["bits"] != 64 or told["implementation"] != "CPython":
        return fail("interpreter", seen, "CPython, 64 bit: torch has no other wheels", "uv venv --python 3.12")
    if "PYTHONHOME" in told["variables"]:
        home = told["variables"]["PYTHONHOME"]
        return warn("interpreter", f"{seen}; PYTHONHOME={home}", "no PYTHONHOME", "unset PYTHONHOME")
    if "PYTHONPATH" in told["variables"]:
        seen += f"; PYTHONPATH={told['variables']['PYTHONPATH']} is searched first"
    return ok("interpreter", seen)


def torch(told: dict[str, Any], python: str) -> Check:
    """Judge whether torch is there, and say which build."""
    found = told["torch"]
    if not found:
        return fail("torch installed", "torch is not installed here", "torch", f"{python} -m pip install torch")
    build = f"CUDA {found['cuda']}" if found.get("cuda") else f"ROCm {found['hip']}" if found.get("hip") else "CPU only"
    return ok("torch installed", f"torch {found.get('version', 'of unknown version')} for {build}")


def missing(found: dict[str, str | None], python: str) -> Check:
    """Judge what else `ocrlab train` needs; other programs may do without."""
    absent = [package for module, package in TRAINS.items() if found.get(module) is None]
    if absent:
        do = f"{python} -m pip install {' '.join(absent)}"
        return warn("packages present", f"not installed: {', '.join(absent)}", "needed by ocrlab train", do)
    return ok("packages present", ", ".join(["torch", *TRAINS] if found.get("torch") else TRAINS))


def pair(installed: dict[str, list[dict[str, Any]]], python: str) -> Iterator[Check]:
    """Judge whether torch is the version that torchvision and torchaudio were built for, by what they require."""
    if "torch" not in installed:
        return
    have = installed["torch"][0]["version"]
    for name in ("torchvision", "torchaudio"):
        for one in installed.get(name, [])[:1]:
            pins = [found for need in one["needs"] if (found := PIN.match(need)) and found["name"] == "torch"]
            label = f"torch and {name}"
            if pins and version(pins[0]["version"]) != version(have):
                seen = f"{name} {one['version']} was built for torch {pins[0]['version']}, installed is {have}"
                do = f"{python} -m pip install --force-reinstall --no-deps {name}=={release(name, have)}"
                yield fail(label, seen, "the two of one release", do, "build.torchvision")
            elif build(have) != build(one["version"]) and build(have) and build(one["version"]):
                seen = f"torch {have}, {name} {one['version']}: built for different CUDA versions"
                do = f"reinstall both from the same index: uv pip install --torch-backend={build(have)} torch {name}"
                yield fail(label, seen, "the same CUDA version", do, "build.torchvision")
            else:
                yield ok(label, f"torch {have}, {name} {one['version']}")


def release(name: str, torch_version: str) -> str:
    """Return the release of torchvision (0.15 + n for torch 2.n) or torchaudio that belongs to a torch version."""
    major, minor, *_ = (*version(torch_version), 0, 0)
    return f"0.{minor + 15}.*" if name == "torchvision" and major == 2 else f"{major}.{minor}.*"


def build(text: str) -> str:
    """Return what stands after the plus of a version: cu126, cpu, rocm6.4."""
    return text.partition("+")[2]


def mixed(told: dict[str, Any], installed: dict[str, list[dict[str, Any]]], python: str) -> Check:
    """Judge packages that are there twice, against each other, or half removed."""
    twice = [
        f"{name} {' and '.join(sorted({one['version'] for one in every}))}"
        for name, every in installed.items()
        if len({one["version"] for one in every}) > 1
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
        seen = ", ".join(f"{name} {have} (torch needs {need})" for name, need, have in wrong)
        return warn(
            label, seen, "what torch was built with", f"{python} -m pip install {names}", "build.cuda_libraries"
        )
    if told["leftovers"]:
        places = " ".join(f"'{place}'" for place in told["leftovers"])
        return warn(label, f"left over from an interrupted pip: {places}", "none", f"rm -r {places}")
    both = "pytorch" in told["conda"] and any(one["installer"] == "pip" for one in installed.get("torch", ()))
    if both:
        return warn(label, "torch is installed by conda and by pip", "one of them", "conda remove pytorch")
    return ok(label, f"{len(installed)} packages, each once")


def wrong_cuda(installed: dict[str, list[dict[str, Any]]]) -> list[tuple[str, str, str]]:
    """Return the CUDA packages whose version is not the one that torch requires, as (name, needed, installed)."""
    wrong = []
    for need in installed["torch"][0]["needs"] if installed.get("torch") else ():
        found = PIN.match(need)
        name = re.sub(r"[-_.]+", "-", found["name"]).lower() if found else ""
        if found and name.startswith(("nvidia-", "triton")) and installed.get(name):
            have = installed[name][0]["version"]
            if version(have) != version(found["version"]):
                wrong.append((name, found["version"], have))
    return wrong


def shadows(told: dict[str, Any]) -> list[str]:
    """Return the files of the working folder and of PYTHONPATH that are imported instead of what was meant."""
    folders = [os.path.abspath(place) for place in told["interpreter"]["variables"].get("PYTHONPATH", "").split(":")]
    folders = [folder for folder in folders if not os.path.isfile(f"{folder}/os.py")]  # Python's own library
    ours = [place for folder in folders for name in STANDARD if os.path.isfile(place := f"{folder}/{name}.py")]
    ours += [
        place
        for name, place in told["found"].items()
        if place and os.path.dirname(place) in folders and os.path.basename(place) == f"{name}.py"
    ]
    return list(dict.fromkeys([*told["shadows"], *ours]))


def shadowed(told: dict[str, Any]) -> Check:
    """Judge files that are imported instead of what was meant: by torch or a training (fail), or hardly ever (warn)."""
    found = sorted(shadows(told), key=harms, reverse=True)
    if found:
        seen = f"imported instead of the real module: {', '.join(found)}"
        judged = fail if harms(found[0]) else warn
        return judged("names shadowed", seen, "files with names of their own", away(found[0]))
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
    found = [place for place in every if harms(place)]
    general = check.cause in (None, "build.torchvision") and ("install" in check.do or check.do.startswith("dmesg"))
    if not found or check.judgement != "fail" or not general:
        return check
    named = [place for place in found if f"{os.sep}{check.name.rpartition(' ')[2]}" in place]
    return replace(
        check, need="no file of your own with the name of a module", do=away((named or found)[0]), cause=None
    )
