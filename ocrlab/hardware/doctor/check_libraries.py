"""Step 5: the CUDA, OpenMP and C++ libraries that torch really mapped, and whether they belong together."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator

from ocrlab.hardware.doctor.check_imports import torchless
from ocrlab.hardware.doctor.check_spec import PROBES, Answers, Facts, Options, Probe, fail, ok, skip, warn
from ocrlab.records import Check

FAMILY = re.compile(r"^lib(cudnn|cublas|nccl|cudart|cufft|cusolver|cusparse|nvrtc)")
FILE = re.compile(r"^(?P<name>lib.+?)(?P<bundled>-[0-9a-f]{8})?\.so(?:\.(?P<version>[\d.]+))?$")
SEARCHED = ("cudnn", "cublas", "nccl", "cudart")  # found in a folder of LD_LIBRARY_PATH they come before the wheel's


def asks(options: Options) -> list[Probe]:
    """Return the ask of what LD_LIBRARY_PATH offers; what is mapped was told by the imports."""
    after = ("import torch", "import torchvision", "torch and the GPU", "smoke test: GPU")
    return [Probe(5, "CUDA libraries", PROBES / "resource_limits.py", "library_path", judge, 10, own=True, after=after)]


def judge(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the findings on mapped libraries and on the loader's search path."""
    [paths] = answers
    why = torchless(facts)
    mapped = {
        path
        for name in ("import torch", "torch and the GPU", "smoke test: GPU")
        for answer in facts.get(name, ())
        for path in answer.get("mapped", ())
    }
    yield skip("libraries mapped", why) if why else families(mapped)
    if not why:
        yield openmp(mapped)
    yield search_path(paths)


def families(mapped: set[str]) -> Check:
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


def openmp(mapped: set[str]) -> Check:
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


def search_path(answer: dict[str, list[str]]) -> Check:
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
