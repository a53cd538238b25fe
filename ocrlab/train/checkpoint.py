"""Checkpoints: written whole or not at all, read without pickle.

Two kinds. `last.ckpt` holds everything that resuming needs (Lightning's layout). `best-*.ckpt` holds the averaged
weights, what the detector is, and the settings it was measured with; `Detector.load` reads both.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from ocrlab.config import Config
from ocrlab.errors import CheckpointError, ConfigError
from ocrlab.model.detector import Detector

SCHEMA = 1


class AtomicIO(TorchCheckpointIO):
    """Lightning's checkpoint reader and writer with `save` and `load` below in place of its own."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        save(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return load(Path(path), map_location=map_location)


def save(content: dict[str, Any], path: Path) -> None:
    """Write `content` under a temporary name, sync, read it back, rename; raises OSError when the disk says no."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        torch.load(temporary, map_location="meta", weights_only=True, mmap=True)  # what cannot be read back is no file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # some file systems cannot sync a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def load(path: Path, *, map_location: Any = "cpu") -> dict[str, Any]:
    """Read a checkpoint with `weights_only=True` (no pickle of strangers runs); raises CheckpointError."""
    if not path.is_file():
        raise CheckpointError("There is no checkpoint", got=str(path), need="a .ckpt file written by ocrlab train")
    try:
        content = torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:  # zip, unpickling and truncation errors share no base class
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint",
            got=f"{type(error).__name__}: {str(error).splitlines()[0]}",
            need="a whole file written by ocrlab train",
        ) from error
    if not isinstance(content, dict) or "ocrlab" not in content:
        raise CheckpointError(f"{path} was not written by ocrlab", need="a .ckpt file written by ocrlab train")
    if content["ocrlab"]["schema"] > SCHEMA:
        raise CheckpointError(f"{path} was written by a newer ocrlab", need=f"checkpoint schema {SCHEMA} or older")
    return content


def card(config: Config, step: int, metrics: dict[str, float]) -> dict[str, Any]:
    """Return what a checkpoint says about itself, in types that `weights_only=True` reads."""
    return {"schema": SCHEMA, "config": config.model_dump(mode="json"), "step": step, "metrics": dict(metrics)}


def save_detector(model: Detector, path: Path, config: Config, step: int, metrics: dict[str, float]) -> None:
    """Write the weights of a detector with its card."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    save({"ocrlab": card(config, step, metrics), "detector": weights}, path)


def load_detector(path: Path) -> tuple[Detector, Config, dict[str, Any]]:
    """Return the detector (in evaluation mode, on the CPU), its config and its card; raises CheckpointError."""
    content = load(path)
    about = content["ocrlab"]
    try:
        config = Config(**about["config"])
    except ConfigError as error:
        raise CheckpointError(f"{path} holds settings that this ocrlab does not know", got=str(error)) from error
    weights = content.get("detector") or {
        name.removeprefix("averaged."): tensor
        for name, tensor in content["state_dict"].items()
        if name.startswith("averaged.")
    }
    model = Detector(config.encoder, config.decoder, config.width)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(
            f"The weights in {path} do not fit the detector that it names",
            got=str(error).splitlines()[1].strip(),
            need=f"weights of {config.encoder} + {config.decoder}, width {config.width}",
        ) from error
    return model.to(memory_format=torch.channels_last).eval(), config, about
