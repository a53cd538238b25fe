"""What a hand-written loop trains: models, optimizers, schedulers, scaler and the rest, as one state and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ocrlab.errors import CheckpointError, ShapeError


class TrainingState:
    """The parts of a training that have a state; each of the first three may be a single object, several, or None."""

    def __init__(self, model: Any, optimizer: Any, scheduler: Any, scaler: Any, extra: Any) -> None:
        self.models: list[nn.Module] = _as_list(model)
        if not self.models or not all(isinstance(part, nn.Module) for part in self.models):
            got = ", ".join(type(part).__name__ for part in self.models) or "nothing"
            raise ShapeError("ocrlab.record needs a torch model", got=got, need="an nn.Module, or a list of them")
        self.optimizers = _as_list(optimizer)
        self.schedulers = _as_list(scheduler)
        self.scaler = scaler
        self.extra: Mapping[str, Any] = extra if isinstance(extra, Mapping) else {"extra": extra} if extra else {}

    def shares(self, other: TrainingState) -> bool:
        """Return whether two trainings have a model in common."""
        return not {*map(id, self.models)}.isdisjoint(map(id, other.models))

    def parts(self) -> dict[str, Any]:
        """Return every part by name."""
        lists = [("model", self.models), ("optimizer", self.optimizers), ("scheduler", self.schedulers)]
        parts = {f"{name}.{i}": part for name, several in lists for i, part in enumerate(several)}
        scaler = {} if self.scaler is None else {"scaler": self.scaler}
        return parts | scaler | {f"extra.{name}": part for name, part in self.extra.items()}

    def state(self, epoch: int) -> dict[str, Any]:
        """Return the state of every part, the modes of the modules, and the buffers outside of every state_dict."""
        states, without_state = {}, []
        for name, part in self.parts().items():
            if hasattr(part, "state_dict"):
                states[name] = part.state_dict()
            else:
                without_state.append(f"{name}: {type(part).__name__} has no state_dict")
        hidden = []
        for i, model in enumerate(self.models):
            stored = states[f"model.{i}"]
            hidden.append({name: buffer for name, buffer in model.named_buffers() if name not in stored})
        modes = [[module.training for module in model.modules()] for model in self.models]
        content = {"kind": "loop", "epoch": epoch, "parts": states, "hidden": hidden, "modes": modes}
        return content | {"without_state": without_state}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore every part; raises CheckpointError if the models or optimizers differ from the recorded ones."""
        states = state["parts"]
        parts = {name: part for name, part in self.parts().items() if hasattr(part, "state_dict")}
        if parts.keys() != states.keys():
            raise CheckpointError(
                "The models or optimizers differ from those in the recording",
                got=", ".join(parts),
                need=", ".join(states),
            )
        for name, part in parts.items():
            part.load_state_dict(states[name])
        for model, hidden, modes in zip(self.models, state["hidden"], state["modes"], strict=True):
            buffers = dict(model.named_buffers())
            for name, value in hidden.items():
                if name in buffers and value is not None:
                    buffers[name].copy_(value)
            for module, mode in zip(model.modules(), modes, strict=True):
                module.training = mode


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, Sequence) and not isinstance(value, nn.Module):
        return [part for part in value if part is not None]
    return [value]


def first_learning_rate(optimizers: Sequence[Any]) -> float | None:
    """Return the learning rate of the first optimizer, None for none; a value on a device is not fetched."""
    for optimizer in optimizers:
        for group in getattr(optimizer, "param_groups", ()):
            value = group.get("lr")
            if type(value) is float:
                return value
            is_remote = isinstance(value, torch.Tensor) and value.device.type != "cpu"
            return None if value is None or is_remote else float(value)
    return None
