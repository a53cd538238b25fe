"""What the jobs of ocrlab's own children do: measure memory until their limit, and a bisect's trial."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from ocrlab.config import schema as configs
from ocrlab.config.schema import Config
from ocrlab.data.dataset import PageOrder
from ocrlab.data.formats.reader import Sample
from ocrlab.data.synthetic import generate
from ocrlab.errors import DataError
from ocrlab.training import loop
from ocrlab.training.jobs import measure_memory
from ocrlab.training.run_callback import RunCallback

MIB = 1 << 20
SMALL = {
    "trainer.accelerator": "cpu", "trainer.precision": "fp32", "runtime.threads": 1, "runtime.workers": 0,
    "runtime.channels_last": True, "crop": 64, "evaluate.long_side": 128, "width": 16, "batch_size": 2,
}  # fmt: skip


def sample(name: str, width: int, height: int, polygons: int = 1, points: int = 4) -> Sample:
    shapes = (np.zeros((points, 2), np.float32),) * polygons
    return Sample(name, Path(name), shapes, np.zeros(polygons, bool), ("",) * polygons, None, width, height)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    generate.make(folder, train=3, val=2)
    return folder


def child(tmp_path: Path, pages: Path, module: str, **job: Any) -> dict[str, Any]:
    config = configs.load(None, {**SMALL, "data": str(pages), "runs": str(tmp_path / "runs")})
    (tmp_path / "config.yaml").write_text(configs.dump(config))
    content = {"schema": 1, "config": str(tmp_path / "config.yaml"), "overrides": {}, **job}
    (tmp_path / "job.json").write_text(json.dumps({**content, "out": str(tmp_path / "out.json")}))
    command = [sys.executable, "-m", f"ocrlab.training.jobs.{module}", str(tmp_path / "job.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    record: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    return record


def test_the_worst_pages_are_chosen() -> None:
    small = [sample(f"small{n}", 100, 100) for n in range(9)]
    big, long, wide = sample("big", 900, 900), sample("long", 50, 4000), sample("wide", 4000, 50)
    many, fine = sample("many", 90, 90, polygons=70), sample("fine", 90, 90, polygons=2, points=500)
    result = {page.name for page in measure_memory.worst_pages([*small, big, long, wide, many, fine])}
    assert result == {"big", "long", "wide", "many", "fine"}
    assert len(measure_memory.worst_pages(small)) == 1
    with pytest.raises(DataError, match="no page"):
        measure_memory.worst_pages([])


@pytest.mark.slow
def test_a_measured_training_says_its_peaks(tmp_path: Path, pages: Path) -> None:
    result = child(tmp_path, pages, "measure_memory")
    assert result["finished"]
    assert set(result["peaks"]) == {"check", "train", "validate", "final"}
    assert result["peaks"]["train"] > result["base"] > 10 * MIB
    assert result["crops_a_second"] > 0
    assert result["settled"]["trainer.precision"] == "fp32"


def test_a_longer_measurement_makes_more_steps_with_fewer_validations(tmp_path, pages, monkeypatch):
    fitted: list[Config] = []
    monkeypatch.setattr("ocrlab.training.loop.fit", lambda config, **_more: fitted.append(config))
    for long in (False, True):
        config = configs.load(None, {**SMALL, "data": str(pages)})
        measure_memory.measure(config, tmp_path / "out.json", None, "resident", long=long)
    short, longer = fitted
    assert longer.trainer.max_steps >= 5 * short.trainer.max_steps
    assert (longer.trainer.val_every, longer.recorder.snapshot_every) == (6, 6)
    assert longer.trainer.max_minutes
    assert short.trainer.max_minutes is None


@pytest.mark.slow
def test_a_training_over_its_limit_ends_and_says_so(tmp_path: Path, pages: Path) -> None:
    result = child(tmp_path, pages, "measure_memory", usable=20 * MIB)
    assert not result["finished"]
    assert result["over"]["held"] > 20 * MIB


@pytest.mark.slow
def test_an_estimate_says_its_parts(tmp_path: Path, pages: Path) -> None:
    result = child(tmp_path, pages, "estimate_memory")
    assert result["pages"] == 3
    assert sum(result["parts"].values()) == result["peak"]
    assert result["slope"] > 0


def test_the_scales_end_a_process_that_is_over_its_limit(tmp_path: Path) -> None:
    code = f"""
import time
from pathlib import Path
from ocrlab.training.jobs.memory_meter import MemoryMeter
scales = MemoryMeter(Path({str(tmp_path / "out.json")!r}), 1 << 20)
with scales:
    held = bytearray(64 << 20)
    time.sleep(30)
raise SystemExit(9)
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=120, check=False)
    assert done.returncode == 0
    assert json.loads((tmp_path / "out.json").read_text())["over"]["phase"] == "start"


FAMILY = """
import mmap, os, subprocess, sys, time
from ocrlab.training.jobs import memory_meter
MIB = 1 << 20
block, batch = bytearray(os.urandom(MIB)) * 200, mmap.mmap(-1, 60 * MIB)
ready, started = os.pipe()

def forked(work):
    if os.fork() == 0:
        kept = work()  # until it is killed
        os.write(started, b"x")
        time.sleep(60)

forked(lambda: batch.write(b"x" * 60 * MIB))          # in shared memory that is mapped here as well
forked(lambda: bytearray(os.urandom(MIB)) * 40)       # of its own
forked(lambda: None)                                  # touches nothing
block[:100 * MIB] = bytes(100 * MIB)                   # from now on the three alone share how it was
for _ in range(3):
    os.read(ready, 1)
young = memory_meter._worker_memory()
time.sleep(memory_meter.YOUNG + 0.2)
print(young // MIB, memory_meter._worker_memory() // MIB, flush=True)
os.killpg(0, 9)
"""


def test_workers_are_weighed_by_what_they_hold_beside_this_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAMILY], timeout=120, check=False, start_new_session=True, capture_output=True, text=True
    )
    young, grown = map(int, done.stdout.split())
    assert young == 0
    assert 60 + 40 + 100 - 10 < grown < 60 + 40 + 100 + 30


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back what a flipped run changes for good: it is the last thing that its process does."""
    for owner, name in (
        (DataLoader, "__init__"),
        (PageOrder, "__iter__"),
        (RunCallback, "finish_batch"),
        (loop, "load"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
