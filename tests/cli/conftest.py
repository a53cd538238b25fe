"""Stand-ins for the learning half: commands are tested without torch, the real wiring is in test_end_to_end.py."""

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from ocrlab.cli import detector_options
from ocrlab.config.schema import Config
from ocrlab.data import folder_layouts
from ocrlab.data.annotations import Problem
from ocrlab.errors import DataError
from ocrlab.records import Detection, Prediction, to_json

SCORES = {f"{figure}@{at}": 0.5 for figure in ("hmean", "precision", "recall") for at in (0.5, 0.7, 0.8)}


@pytest.fixture(autouse=True)
def in_process(monkeypatch) -> None:
    """Let `ocrlab train` believe that it is watched already, so that it trains in this process."""
    monkeypatch.setenv("OCRLAB_WATCH", os.devnull)


@pytest.fixture
def calls(monkeypatch) -> SimpleNamespace:
    """Replace fit, predict and machine by modules that write down how they were called, and return what they wrote."""
    record_of_calls = SimpleNamespace(fit=None, load=None, evaluate=None, files=None, status="success", noise=None)

    monkeypatch.setattr(detector_options, "check_checkpoint", lambda _path: None)

    def fit(config, *, resume=None, progress):
        record_of_calls.fit = SimpleNamespace(config=config, resume=resume)
        if record_of_calls.noise:
            record_of_calls.noise()
        progress({"kind": "warning", "text": "a word from the run"})
        progress({"kind": "train", "step": 1, "total": 2, "loss": 0.5})
        progress({"kind": "validate", "step": 2, "total": 2, "hmean@0.5": 0.25})
        return SimpleNamespace(
            pages=48, folder=Path("runs/x"), status=record_of_calls.status, metrics={"hmean@0.5": 0.25}, checkpoint=None
        )

    def load(checkpoint, *, runs, device):
        record_of_calls.load = SimpleNamespace(checkpoint=checkpoint, runs=runs, device=device)
        return SimpleNamespace(config=Config(exif=True, crop=256), checkpoint=checkpoint, origin="as asked")

    def evaluate(detector, data, split, *, exif, tick):
        record_of_calls.evaluate = SimpleNamespace(detector=detector, data=data, split=split, exif=exif)
        tick(1, 1)
        return {**SCORES, "pages": 3.0, "seconds": 1.5}

    def collect(paths):
        for path in paths:
            if not path.exists():
                raise DataError("No such file or folder", got=str(path), missing=True)
        return paths

    def predict_files(detector, files, out, formats):
        record_of_calls.files = SimpleNamespace(detector=detector, paths=files, out=out, formats=formats)
        for path in files:
            if path.suffix == ".bad":
                yield result_of(path, Problem(path, None, "is not an image"))
            else:
                yield result_of(path, Prediction(path.name, 8, 9, [Detection([[0, 0], [4, 0], [4, 4]], 0.5)]))

    def result_of(path, page):
        record = {"image": path.name} if isinstance(page, Problem) else to_json(page)
        return SimpleNamespace(file=path, page=page, record=lambda: record)

    fake = {
        "training.loop": {"fit": fit},
        "training.auto_settings": {"accelerator_for": lambda wanted: (wanted, "as asked")},
        "inference.detector": {
            "Detector": SimpleNamespace(load=load),
            "threads": lambda count: setattr(record_of_calls, "threads", count),
        },
        "inference.prediction_files": {"collect": collect, "predict_files": predict_files},
        "inference.scoring": {"evaluate": evaluate},
        "inference.onnx_export": {},
    }
    find = folder_layouts.find  # for the stand-ins a data folder is a name and need not be there
    monkeypatch.setattr(folder_layouts, "find", lambda data, split: find(data, split) if data.exists() else None)
    for name, members in fake.items():
        module = ModuleType(f"ocrlab.{name}")
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        package, _, last = name.partition(".")
        monkeypatch.setattr(importlib.import_module(f"ocrlab.{package}"), last, module, raising=False)
    return record_of_calls
