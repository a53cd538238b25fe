"""`ocrlab kernel` beside the runtime: the errors of refused launches, resident blocks, ptxas' and ncu's reports."""

from __future__ import annotations

import json
import re
import shutil
import sys
from typing import Any

from stage import Stage, build_kernels

LAUNCHES = (  # grid x and y, block x, y and z, bytes of shared memory
    (1, 1, 1024, 1, 1, 4096),
    (1, 1, 2048, 1, 1, 4096),
    (1, 1, 32, 64, 1, 4096),
    (1, 1, 1, 1, 65, 4096),
    (0, 1, 32, 1, 1, 4096),
    (1, 65536, 32, 1, 1, 4096),
    (1, 1, 32, 1, 1, 65536),
    (1, 1, 32, 1, 1, 262144),
)
RESIDENT = ((32, 4096), (96, 4096), (256, 8192), (512, 40000), (1024, 4096), (1024, 100000))  # threads, bytes
ASK = """
import ctypes, json, sys
import torch
x = torch.zeros(4096, device="cuda")
library = ctypes.CDLL(sys.argv[1])
library.launch_status.argtypes = [ctypes.c_void_p] + [ctypes.c_uint] * 5 + [ctypes.c_size_t]
library.resident_blocks.argtypes = [ctypes.c_int, ctypes.c_size_t]
launches, resident = json.loads(sys.argv[2])
codes = [library.launch_status(x.data_ptr(), *launch) for launch in launches]
print(json.dumps({"codes": codes, "blocks": [library.resident_blocks(*each) for each in resident]}))
"""


def run(stage: Stage) -> None:
    """Ask the runtime and `ocrlab kernel` the same questions."""
    library = build_kernels(stage, "-Xptxas", "-v")
    done = stage.child(["-c", ASK, library, json.dumps([LAUNCHES, RESIDENT])], 60) if library else None
    answer = done.json() if done else {}
    for launch, code in zip(LAUNCHES, answer.get("codes") or [0] * len(LAUNCHES), strict=True):
        expected = expected_codes(stage, launch)
        text = f"error {code}; ocrlab kernel expects {' or '.join(map(str, sorted(expected)))}"
        stage.row(f"launch grid {launch[:2]}, block {launch[2:5]}, {launch[5]} bytes", text, "equal", code in expected)
    registers = ""
    if library:
        report = stage.folder / "ptxas.txt"
        listed = listing(stage, ["--ptxas", str(report)]) if report.exists() else {}
        stage.row("kernels in the report of ptxas", ", ".join(listed) or "none", "resources among them",
                  any("resources" in name for name in listed))  # fmt: skip
        used = re.search(r"'_Z9resources\w*' for[\s\S]*?Used (\d+) registers", report.read_text())
        registers = used[1] if used else ""
    for (threads, shared), blocks in zip(RESIDENT, answer.get("blocks") or [0] * len(RESIDENT), strict=True):
        words = ["--block", str(threads), "--shared", str(shared), *(["--registers", registers] if registers else [])]
        checks = next(iter(listing(stage, words).values()), [])
        expected = next((check["seen"] for check in checks if check["name"] == "occupancy"), "no answer")
        met = re.search(rf"\b{blocks} blocks", expected) is not None
        stage.row(f"resident blocks of {threads} threads, {shared} bytes", f"{blocks}; {expected}", "equal", met)
    profile(stage, library)


def expected_codes(stage: Stage, launch: tuple[int, ...]) -> set[int]:
    """Return the error codes of which `ocrlab kernel` predicts one for a launch; {0} where it predicts success."""
    gx, gy, bx, by, bz, shared = launch
    words = ["--grid", f"{gx},{gy}", "--block", f"{bx},{by},{bz}", "--shared", str(shared)]
    checks = next(iter(listing(stage, words).values()), [])
    refused = [check["seen"] for check in checks if check["judgement"] in ("fail", "warn")]
    return {int(code) for text in refused for code in re.findall(r"\((\d+)\)", text)} or {0}


def listing(stage: Stage, words: list[str]) -> dict[str, Any]:
    """Return what `ocrlab kernel --json` says of each kernel."""
    where = ["--capability", "9.0"] if stage.dry_run else []
    done = stage.child(["-m", "ocrlab", "kernel", *words, *where, "--json"], 30)
    kernels = done.json().get("kernels")
    return kernels if isinstance(kernels, dict) else {}


def profile(stage: Stage, library: str) -> None:
    """Let Nsight Compute measure one kernel, and `ocrlab kernel --ncu` read it."""
    ncu = shutil.which("ncu")
    if ncu is None or not library:
        stage.row("ncu", "not used in a dry run" if stage.dry_run else "not here")
        return
    code = "import torch; x = torch.rand(1 << 24, device='cuda'); print((x * 2).sum().item())"
    words = ["--csv", "--page", "raw", "--clock-control", "none", "--set", "full", "--launch-count", "3"]
    done = stage.program([ncu, *words, sys.executable, "-c", code], 60)
    table = stage.folder / "ncu.csv"
    table.write_text(done.out, encoding="utf-8")
    read = stage.child(["-m", "ocrlab", "kernel", "--ncu", table], 30)
    stage.row("ocrlab kernel --ncu", read.out.strip()[:400] or read.err.strip()[-200:], "status 0", read.status == 0)
