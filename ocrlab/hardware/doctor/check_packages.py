"""Steps 1 and 2: the interpreter, its packages, and whether each import returns, fast and complete."""

from __future__ import annotations

import os
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ocrlab.hardware.doctor.check_spec import PROBES, Answers, Facts, Options, Probe, fail, ok, skip, version, warn
from ocrlab.hardware.installed_packages import STANDARD
from ocrlab.records import Check

OPENCV = ("opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless")
SELDOM = ("code", "parser", "profile", "symbol", "test")  # of Python's own modules, those that no training imports
TRAINS = {"torchvision": "torchvision", "numpy": "numpy", "cv2": "opencv-python"}  # module -> what provides it
PIN = re.compile(r"^(?P<name>[A-Za-z0-9_.-]+)\s*\(?==\s*(?P<version>[^;,)\s]+)\)?(?:\s*;\s*(?P<marker>.*))?$")


def package_probes(options: Options) -> list[Probe]:
    """Return the ask of step 1; the metadata of a thousand packages take a tenth of its time from a slow disk."""
    return [
        Probe(
            1, "packages", PROBES / "installed_packages.py", "facts", lambda a, f: judge_packages(a, options.python), 20
        )
    ]


def judge_packages(answers: Answers, python: str) -> Iterator[Check]:
    """Yield the findings on the interpreter and on its packages; `python` is what it was called by."""
    [answer] = answers
    yield judge_interpreter(answer["interpreter"])
    installed: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for distribution in answer["distributions"]:
        if all(
            distribution["version"] != other["version"] or distribution["place"] != other["place"]
            for other in installed[distribution["name"]]
        ):
            installed[distribution["name"]].append(distribution)
    yield judge_torch(answer, python)
    yield judge_missing(answer["found"], python)
    yield from judge_pairs(installed, python)
    yield judge_mixed(answer, installed, python)
    yield judge_shadowing(answer)


def judge_interpreter(python: dict[str, Any]) -> Check:
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


def judge_torch(answer: dict[str, Any], python: str) -> Check:
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


def judge_missing(origins: dict[str, str | None], python: str) -> Check:
    """Judge what else `ocrlab train` needs; other programs may do without."""
    absent = [package for module, package in TRAINS.items() if origins.get(module) is None]
    if absent:
        do = f"{python} -m pip install {' '.join(absent)}"
        return warn("packages present", f"not installed: {', '.join(absent)}", "needed by ocrlab train", do)
    return ok("packages present", ", ".join(["torch", *TRAINS] if origins.get("torch") else TRAINS))


def judge_pairs(installed: dict[str, list[dict[str, Any]]], python: str) -> Iterator[Check]:
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
                do = f"{python} -m pip install --force-reinstall --no-deps {name}=={matching_release(name, have)}"
                yield fail(label, observed, "the two of one release", do, "build.torchvision")
            elif (
                local_version(have) != local_version(distribution["version"])
                and local_version(have)
                and local_version(distribution["version"])
            ):
                observed = f"torch {have}, {name} {distribution['version']}: built for different CUDA versions"
                backend = local_version(have)
                do = f"reinstall both from the same index: uv pip install --torch-backend={backend} torch {name}"
                yield fail(label, observed, "the same CUDA version", do, "build.torchvision")
            else:
                yield ok(label, f"torch {have}, {name} {distribution['version']}")


def matching_release(name: str, torch_version: str) -> str:
    """Return the release of torchvision (0.15 + n for torch 2.n) or torchaudio that belongs to a torch version."""
    major, minor, *_ = (*version(torch_version), 0, 0)
    return f"0.{minor + 15}.*" if name == "torchvision" and major == 2 else f"{major}.{minor}.*"


def local_version(text: str) -> str:
    """Return what stands after the plus of a version: cu126, cpu, rocm6.4."""
    return text.partition("+")[2]


def judge_mixed(answer: dict[str, Any], installed: dict[str, list[dict[str, Any]]], python: str) -> Check:
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


def shadowing_files(answer: dict[str, Any]) -> list[str]:
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


def judge_shadowing(answer: dict[str, Any]) -> Check:
    """Judge files that are imported instead of what was meant: by torch or a training (fail), or hardly ever (warn)."""
    files = sorted(shadowing_files(answer), key=is_harmful, reverse=True)
    if files:
        observed = f"imported instead of the real module: {', '.join(files)}"
        judged = fail if is_harmful(files[0]) else warn
        return judged("names shadowed", observed, "files with names of their own", rename_command(files[0]))
    return ok("names shadowed", "no file of this folder hides a module")


def is_harmful(place: str) -> bool:
    """Tell whether torch or a training imports the module that this file hides."""
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
    every = shadowing_files(facts["packages"][0]) if facts.get("packages") else []
    harmful = [place for place in every if is_harmful(place)]
    general = check.cause in (None, "build.torchvision") and ("install" in check.do or check.do.startswith("dmesg"))
    if not harmful or check.judgement != "fail" or not general:
        return check
    named = [place for place in harmful if f"{os.sep}{check.name.rpartition(' ')[2]}" in place]
    return replace(
        check,
        need="no file of your own with the name of a module",
        do=rename_command((named or harmful)[0]),
        cause=None,
    )


SLOW_IMPORT = 15.0  # seconds; torch takes 2 from a warm disk and 8 from a cold one
MANY = 200  # files that are compiled again at each start: a second or more; torch has a thousand
NMS = [0, 2]  # of three boxes, the second of which overlaps the first by 0.68
REASONS = (  # what an ImportError says -> cause, what is needed, what fixes it; the first that is found
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


def import_probes(options: Options) -> list[Probe]:
    """Return the asks of step 2.

    torch may take a minute from a cold network disk; ten seconds without using the processor or reading anything are
    no slow disk. wandb is asked so that a tracker that hangs at import is found before a training waits for it.
    """
    probe = PROBES / "import_probe.py"

    def judged(name: str) -> Any:
        return lambda answers, facts: judge_import(name, answers, options.python)

    return [
        Probe(2, "import torch", probe, "torch", judged("torch"), 60, {}, 10, after=("packages",),
            skip=skip_import("torch"), hang="hang.import"),
        Probe(2, "import torchvision", probe, "torchvision",
            lambda answers, facts: judge_torchvision(answers, facts, options.python), 60, {}, 10,
            after=("packages", "import torch"), skip=skip_import("torchvision", needs="import torch"),
            hang="hang.import", crash="build.torchvision"),
        Probe(2, "import cv2", probe, "imported", judged("cv2"), 30, {"name": "cv2"}, 8, after=("packages",),
            skip=skip_import("cv2"), hang="hang.import"),
        Probe(2, "import wandb", probe, "imported", judged("wandb"), 30, {"name": "wandb"}, 8, after=("packages",),
            skip=skip_import("wandb"), hang="hang.tracker"),
    ]  # fmt: skip


def skip_import(module: str, needs: str | None = None) -> Any:
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


def judge_import(name: str, answers: Answers, python: str) -> Iterator[Check]:
    """Yield the finding on one import."""
    [result] = [answer for answer in answers if "imported" in answer]
    label = f"import {name}"
    if not result["imported"]:
        yield failed_import(label, name, result["error"], python)
    elif result.get("compiled", 0) > MANY:
        yield recompiled(label, result, python)
    elif result["seconds"] > SLOW_IMPORT:
        observed = f"{name} {result['version']} took {result['seconds']:.1f} s"
        yield warn(label, observed, f"less than {SLOW_IMPORT:.0f} s", "install the environment on a local disk")
    else:
        version = f"{name} {result['version']}".strip()
        yield ok(label, f"{version} in {result['seconds']:.1f} s")


def recompiled(label: str, answer: dict[str, Any], python: str) -> Check:
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


def failed_import(label: str, name: str, error: dict[str, Any], python: str) -> Check:
    """Return the finding on an import that raised, with the cause where the message names it."""
    message = f"{error['type']}: {error['message']}"
    observed = f"{message[:300]} ({'/'.join(str(error['where']).split('/')[-3:])})"
    gone = re.search(r"No module named '([\w.]+)'", message)
    if gone:
        package = gone[1].split(".")[0]
        return fail(label, observed, f"the package {package}", f"{python} -m pip install {package}")
    for pattern, cause, need, do in REASONS:
        if re.search(pattern, message):
            command = do.format(python=python, name=name) or reinstall_command(python)
            return fail(label, observed, need, command, cause)
    return fail(label, observed, f"import {name} returns", f"{python} -m pip install --force-reinstall {name}")


def reinstall_command(python: str) -> str:
    """Return the command that brings torch and torchvision together again."""
    return f"{python} -m pip install --force-reinstall torch torchvision"


def judge_torchvision(answers: Answers, facts: Facts, python: str) -> Iterator[Check]:
    """Yield the findings on torchvision: its import, and whether its compiled operators fit this torch."""
    yield from judge_import("torchvision", answers, python)
    label, need = "torchvision.ops.nms", "its compiled operators, built for this torch"
    for answer in answers:
        if "nms" not in answer:
            continue
        if answer["nms"] is None:
            error = answer["error"]
            observed = f"{error['type']}: {error['message'][:200]}"
            yield fail(label, observed, need, reinstall_command(python), "build.torchvision")
        elif answer["nms"] != NMS:
            yield fail(
                label,
                f"kept boxes {answer['nms']} instead of {NMS}",
                need,
                reinstall_command(python),
                "build.torchvision",
            )
        else:
            yield ok(label, "called, and the right boxes were kept")
    if not any("nms" in answer for answer in answers):
        yield skip(label, "torchvision cannot be imported")
