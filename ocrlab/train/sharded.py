"""Training whose weights, gradients and moments are spread over the ranks: torch's FSDP2 through Lightning's strategy.

Rajbhandari et al. 2020 (ZeRO), Zhao et al. 2023 (PyTorch FSDP). A sharded tensor is a DTensor, of which each rank holds
a slice of the first axis. What outlives a process is whole and as without shards, so that a run goes on with any number
of ranks and either strategy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as group
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from ocrlab.model.detector import Detector


class Sharded(ModelParallelStrategy):
    """Lightning's strategy for FSDP2, over the process group `within`, with checkpoints like those of one process."""

    def __init__(self, within: Any, **named: Any) -> None:
        super().__init__(save_distributed_checkpoint=False, **named)
        self.within = within

    def setup_environment(self) -> None:
        self._setup_distributed()
        within: Any = group.group.WORLD if self.within is None else self.within
        self._device_mesh = DeviceMesh.from_group(within, self.root_device.type)
        self._module._device_mesh = self._device_mesh

    @property
    def _module(self) -> Any:
        return self.lightning_module

    def lightning_module_state_dict(self) -> dict[str, Any]:
        return {name: whole(value) for name, value in self._module.state_dict().items()}

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        mine = self._module.state_dict()
        found = {name: like(value, mine.get(name)) for name, value in checkpoint["state_dict"].items()}
        self._module.load_state_dict(found, strict=strict)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        content = optimizer.state_dict()
        state = {}
        for number, mine in content["state"].items():
            state[number] = {name: whole(value) for name, value in mine.items()}
        return content | {"state": state}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, content in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            weights = [weight for part in optimizer.param_groups for weight in part["params"]]
            state = {}
            for number, one in content["state"].items():
                state[number] = {name: like(value, weights[number]) for name, value in one.items()}
            optimizer.load_state_dict(content | {"state": state})

    @property
    def lightning_restore_optimizer(self) -> bool:
        return True

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        return self.checkpoint_io.load_checkpoint(checkpoint_path, weights_only=weights_only)


def shard(detector: Detector, mesh: DeviceMesh) -> None:
    """Spread the weights of a detector over the ranks of `mesh`; each stage travels as one message.

    Its gradients become means over the ranks, as those of DDP.
    """
    for part in (*detector.encoder.children(), detector.decoder, detector.head):
        fully_shard(part, mesh=mesh)
    fully_shard(detector, mesh=mesh)
    if mesh.device_type == "cpu":  # gloo only sums: older torch asked it for a mean, and took the sum for one
        for part in detector.modules():
            if isinstance(part, FSDPModule):
                part.set_force_sum_reduction_for_comms(True)


def gather(model: nn.Module) -> None:
    """Make the weights of a sharded model whole, on every rank, until its next backward pass; else do nothing.

    A forward pass that follows finds them there and sends nothing.
    """
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.unshard()


def whole(value: Any) -> Any:
    """Return a sharded tensor as a plain one, the same on each rank, all of which must ask; anything else as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def like(value: Any, other: Any) -> Any:
    """Return this rank's part of a whole tensor where `other` is sharded and has its shape, else `value`."""
    if isinstance(other, DTensor) and isinstance(value, Tensor) and value.shape == other.shape:
        return distribute_tensor(value.to(other.device), other.device_mesh, other.placements)
    return value
