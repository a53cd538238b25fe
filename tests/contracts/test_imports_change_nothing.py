"""Importing any module of ocrlab changes nothing in the process: no attribute of Python, of torch or of Lightning."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# In a child: pytest has imported some of ocrlab already. `__main__` modules are programs.
COMPARES = """
import builtins, importlib, io, os, pkgutil, random, shutil, signal, sys, threading, warnings
import torch, torch.distributed, torch.nn, torch.nn.functional, torch.optim, torch.utils.data
import torch.utils.data.dataloader, torch.distributed.distributed_c10d, torch.nn.modules.module
# What these change when they are imported is their own doing.
import numpy, cv2, matplotlib, numba, rich, IPython, ipywidgets, pandas, papermill, yaml, pydantic, shapely
import torch._dynamo, torchvision, torch.utils.flop_counter, torch.profiler
import lightning, lightning.pytorch, lightning.pytorch.callbacks, lightning.pytorch.loggers
import lightning.pytorch.strategies, types
WATCHED = [builtins, io, os, shutil, random, sys, signal, threading, warnings, torch, torch.nn, torch.nn.functional,
           torch.nn.Module, torch.Tensor, torch.optim, torch.optim.Optimizer, torch.distributed,
           torch.distributed.distributed_c10d, torch.utils.data, torch.utils.data.dataloader,
           torch.utils.data.DataLoader, torch.autograd, torch.cuda, torch.nn.modules.module, lightning,
           lightning.pytorch, lightning.Trainer, lightning.LightningModule, lightning.Callback,
           lightning.pytorch.strategies.Strategy]
MOVES = {("sys", name) for name in ("last_type", "last_value", "last_traceback", "last_exc", "path_importer_cache",
         "modules", "meta_path_snapshot")} | {("threading", "_dangling"), ("warnings", "_filters_version")}

def seen():
    found = {}
    for part in WATCHED:
        for name, value in vars(part).items():
            if (part.__name__, name) not in MOVES and not isinstance(value, types.ModuleType):  # an import adds those
                hooks = tuple(map(id, value.values())) if isinstance(value, dict) and "hook" in name else ()
                found[part.__name__, name] = id(value), hooks
    found["environment"] = tuple(sorted(os.environ.items()))
    found["signals"] = tuple(id(signal.getsignal(number)) for number in signal.valid_signals())
    found["hooks"] = tuple(map(id, (sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook)))
    found["finders"] = tuple(map(id, sys.meta_path)) + tuple(map(id, sys.path_hooks))
    found["path"] = tuple(sys.path)
    found["trace"] = (sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile())
    found["random"] = random.getstate(), torch.get_rng_state().tolist(), numpy.random.get_state()[1].tolist()
    return found

import ocrlab
kept = [vars(part).copy() for part in WATCHED]  # so that no id is given twice
before = seen()
failed = []
for info in pkgutil.walk_packages(ocrlab.__path__, "ocrlab."):
    if info.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(info.name)
    except ImportError as error:
        failed.append(f"{info.name}: {error}")
for name in ocrlab.__all__:
    getattr(ocrlab, name)
after = seen()
changed = sorted(str(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name))
print("wandb", "wandb" in sys.modules)
print("modules", sum(name.startswith("ocrlab.") for name in sys.modules))
print("failed", failed)
print("changed", changed)
"""


@pytest.mark.timeout(600)
def test_importing_every_module_changes_nothing_and_imports_no_wandb(tmp_path: Path) -> None:
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "__init__.py").write_text("import time\ntime.sleep(1e6)\n")  # it never returns
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-c", COMPARES]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines()[-4:])
    assert lines["wandb"] == "False"
    assert int(lines["modules"]) > 300
    assert lines["failed"] == "[]"
    assert lines["changed"] == "[]"


LEAN = """
import sys, torch, time
begun = time.perf_counter()
from ocrlab import record
print(round(1000 * (time.perf_counter() - begun)))
print(sorted({name.partition(".")[0] for name in sys.modules} & {"lightning", "pandas", "matplotlib", "wandb"}))
"""


def test_record_needs_no_lightning_and_little_time() -> None:
    done = subprocess.run([sys.executable, "-c", LEAN], cwd=ROOT, capture_output=True, text=True, check=True)
    milliseconds, heavy = done.stdout.splitlines()
    assert heavy == "[]"
    assert int(milliseconds) < 2000, "200 on an idle machine"
