"""On a real device: errors that kernels make are recorded and, replayed, named where they were made."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ocrlab.debug.flight_record import ring_reader

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
VICTIM = ROOT / "benchmarks" / "flight_cuda.py"
PAGE = 13
FAULTS = (  # the fault, the module to be named, and what its op may be called
    ("index", "source", r"embedding"),
    ("misaligned", "line_filter", r"(?i)native"),
    ("illegal", "line_filter", r"(?i)native"),
    ("oom", "line_filter", r"empty"),
)


def start(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    variables = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=280, env=variables, check=False
    )


@pytest.mark.parametrize(("fault", "module", "op"), FAULTS)
def test_an_error_of_a_kernel_is_recorded_and_named(tmp_path: Path, fault: str, module: str, op: str) -> None:
    if fault in ("misaligned", "illegal") and not hasattr(torch.cuda, "_compile_kernel"):
        pytest.skip("this torch cannot compile a kernel at run time")
    failed = start(str(VICTIM), fault, str(PAGE), str(tmp_path))
    assert failed.returncode != 0, failed.stdout
    flight = ring_reader.read_ring(ring_reader.find_rings(tmp_path / "run")[0])
    assert flight.torn == 0
    assert flight.now is not None
    assert f"scan-{PAGE}.png" in flight.now.samples or fault != "oom"  # asynchronous: the host may be a step further
    assert any(f"scan-{PAGE}.png" in step.samples for step in flight.steps)
    done = start("-m", "ocrlab", "replay", str(tmp_path / "run"), "--json")
    first = json.loads(done.stdout)["fault"]
    assert first, done.stdout
    assert re.search(rf"(^|\.){module}$", first["path"]), first
    assert re.search(op, first.get("op") or first.get("function") or ""), first
    if fault == "index":  # the others' tensors do not say whose values they are
        assert first["names"] == [f"scan-{PAGE}.png"], first
    assert f"scan-{PAGE}.png" in (first["names"] or json.loads(done.stdout)["samples"]), first


def test_after_a_sticky_error_the_recorder_makes_no_call_and_the_first_error_stays(tmp_path: Path) -> None:
    failed = start(str(VICTIM), "index", str(PAGE), str(tmp_path))
    assert failed.returncode != 0
    assert "device-side assert" in failed.stderr
    assert "ocrlab" not in failed.stderr.strip().splitlines()[-1]
    assert list((tmp_path / "run" / "flight").glob("snapshot-*.pt"))


def test_what_launch_blocking_costs_is_measured(tmp_path: Path, record_property: pytest.FixtureRequest) -> None:
    seconds = {}
    for blocking in ("0", "1"):
        done = start(str(VICTIM), "none", "0", str(tmp_path / blocking), "--time", CUDA_LAUNCH_BLOCKING=blocking)
        seconds[blocking] = float(re.findall(r"seconds ([\d.]+)", done.stdout)[0])
    print(f"CUDA_LAUNCH_BLOCKING=1 makes a step {seconds['1'] / seconds['0'] - 1:+.1%} longer")
    record_property("launch_blocking", seconds["1"] / seconds["0"])  # type: ignore[operator]
    assert seconds["0"] > 0 and seconds["1"] > 0.8 * seconds["0"], "a launch that is waited for is never the faster one"
