"""Checkpoints: written whole or not at all, read without pickle.

Two kinds. `last.ckpt` holds everything that resuming needs (Lightning's layout). `best-*.ckpt` holds the averaged
weights, what the detector is, and the settings it was measured with; `Detector.load` reads both.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch

from ocrlab.config.schema import Config
from ocrlab.errors import CheckpointError, ConfigError
from ocrlab.inference import pretrained
from ocrlab.model.dbnet import Detector

SCHEMA = 1
NETWORK = ("encoder", "decoder", "width")  # what decides which weights there are
PRIVATE = ("data", "train_split", "val_split", "runs", "name", "tracking", "runtime")  # of the machine it was made on


def save(content: dict[str, Any], path: Path) -> None:
    """Write `content` under a temporary name, sync, read it back, rename; raises OSError when the disk says no.

    Its file name is that of the checkpoint: torch's writer of zip files tells only that a position is wrong.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        torch.load(temporary, map_location="meta", weights_only=True, mmap=True)  # can it be read back?
        temporary.replace(path)
    except (OSError, RuntimeError) as error:
        disk = error if isinstance(error, OSError) else error.__context__
        if isinstance(disk, OSError) and disk.errno:
            raise OSError(disk.errno, disk.strerror, str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # some file systems cannot sync a folder
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def remove_torn_files(folder: Path) -> None:
    """Remove what a process that was killed while it saved has left in a folder that nobody else writes to."""
    for torn in folder.glob(".*.ckpt.*.tmp"):
        torn.unlink(missing_ok=True)


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint to the host with `weights_only=True`, so no foreign pickle runs; raises CheckpointError."""
    pretrained.check_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tensors that no detector has
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # zip, unpickling and truncation errors share no base class
        got = "a file of torch that is cut off or damaged"
        if isinstance(error, pickle.UnpicklingError):  # whose own words would advise to let the file run code
            got = "a file with more than weights and numbers: reading it could run code"
        need = "a whole file written by ocrlab train"
        raise CheckpointError(f"{path} cannot be read as a checkpoint", got=got, need=need) from error
    about = content.get("ocrlab") if isinstance(content, dict) else None
    schema = about.get("schema") if isinstance(about, dict) else None
    if not isinstance(schema, int):
        raise CheckpointError(f"{path} was not written by ocrlab", need="a .ckpt file written by ocrlab train")
    if schema > SCHEMA:
        raise CheckpointError(f"{path} was written by a newer ocrlab", need=f"checkpoint schema {SCHEMA} or older")
    return content


def to_resume(path: Path, config: Config) -> dict[str, Any]:
    """Return the card of a run's `last.ckpt`, and in `gpus` of how many it holds the random states.

    Raises CheckpointError where `config` is of another network.
    """
    content = load(path)
    about: dict[str, Any] = content["ocrlab"]
    there, wanted = about.get("config") or {}, config.model_dump(mode="json")
    before = (there.get("trainer") or {}).get("max_steps", config.trainer.max_steps)
    if before <= about["step"] < config.trainer.max_steps:
        raise CheckpointError(
            f"{path} is already complete ({about['step']} of {before} steps)",
            got=f"trainer.max_steps={config.trainer.max_steps} in config.yaml, which was {before}",
            need="a run that ended before its last step",
            do=f"Start a new run; weights={path} begins with what this one has learned",
        )
    other = [name for name in NETWORK if there.get(name, wanted[name]) != wanted[name]]
    if other:
        raise CheckpointError(
            f"{path} has another network than config.yaml of its run",
            got=" ".join(f"{name}={there[name]}" for name in other),
            need=" ".join(f"{name}={wanted[name]}" for name in other),
            do="Restore the config, or start a new run",
        )
    random = content.get("random") or {}
    states = random.get("cuda")  # a list of all cards, as earlier versions stored them
    gpus = len(states) if isinstance(states, list | tuple) else sum(name.startswith("cuda") for name in random)
    return about | {"gpus": gpus}


def card(config: Config, step: int, metrics: dict[str, float]) -> dict[str, Any]:
    """Return what a checkpoint says about itself, in types that `weights_only=True` reads."""
    return {"schema": SCHEMA, "config": config.model_dump(mode="json"), "step": step, "metrics": dict(metrics)}


def save_detector(model: Detector, path: Path, config: Config, step: int, metrics: dict[str, float]) -> None:
    """Write the weights of a detector with its card."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    save({"ocrlab": card(config, step, metrics), "detector": weights}, path)


def write_shareable(source: Path, out: Path) -> None:
    """Write a best checkpoint again without what its settings say of this machine; raises CheckpointError, OSError."""
    content, fresh = load(source), Config().model_dump(mode="json")
    about = content["ocrlab"]
    about["config"] |= {name: fresh[name] for name in PRIVATE}
    if "/" in (about["config"].get("weights") or ""):
        about["config"]["weights"] = None  # where it began is a place on the disk
    save(content, out)


def load_detector(path: Path) -> tuple[Detector, Config, dict[str, Any]]:
    """Return the detector (in evaluation mode, on the CPU), its config and its card; raises CheckpointError."""
    content = load(path)
    about, weights, states = content["ocrlab"], content.get("detector"), content.get("state_dict")
    if weights is None and isinstance(states, dict):
        start = "averaged."
        weights = {name.removeprefix(start): states[name] for name in states if str(name).startswith(start)}
    good = isinstance(weights, dict) and all(_is_weight(tensor) for tensor in weights.values())
    if not (good and weights and isinstance(about.get("config"), dict)):
        raise CheckpointError(f"{path} contains no detector", need="weights and settings as ocrlab train writes them")
    settings = about["config"]
    if isinstance(trainer := settings.get("trainer"), dict) and trainer.get("strategy") == "fsdp":
        settings["trainer"] = trainer | {"strategy": "ddp"}  # of an older version, which wrote whole weights too
    try:
        config = Config(**settings)
    except (ConfigError, TypeError) as error:  # the latter for names of settings that are not text
        raise CheckpointError(f"{path} contains settings that this ocrlab does not know", got=str(error)) from error
    model = Detector(config.encoder, config.decoder, config.width)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(
            f"The weights in {path} do not match the detector in its settings",
            got=str(error).splitlines()[1].strip(" \t."),
            need=f"weights of {config.encoder} + {config.decoder}, width {config.width}",
        ) from error
    return model.to(memory_format=torch.channels_last).eval(), config, about


def _is_weight(value: object) -> bool:
    """Return whether something is an array of real numbers that is stored whole."""
    plain = isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type == "cpu"
    return plain and isinstance(value, torch.Tensor) and not (value.is_complex() or value.is_quantized)


def load_initial_weights(weights: str, *detectors: Detector) -> None:
    """Give detectors the weights of a checkpoint, or of `receipts`, the included one; raises CheckpointError.

    What was learned on other pages is a better beginning than random numbers; steps and rates begin anew.
    """
    path = pretrained.find() if weights == pretrained.NAME else Path(weights)
    source, config, _ = load_detector(path)
    for detector in detectors:
        if (*detector.names, detector.width) != (*source.names, source.width):
            raise CheckpointError(
                f"weights={weights} is another network",
                got=f"encoder={config.encoder} decoder={config.decoder} width={config.width}",
                need=f"encoder={detector.names[0]} decoder={detector.names[1]} width={detector.width}, as configured",
                do="Set encoder, decoder and width to those of the weights",
            )
        detector.load_state_dict(source.state_dict())
