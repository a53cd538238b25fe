"""Averaging, and training in less memory."""

import pytest
import torch

from ocrlab.config.schema import Config
from ocrlab.training import lightning_module
from ocrlab.training.auto_settings import Machine


def net(value: float) -> torch.nn.Module:
    network = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1))
    with torch.no_grad():
        for tensor in [*network.parameters(), *(b for b in network.buffers() if b.dtype.is_floating_point)]:
            tensor.fill_(value)
    network[1].num_batches_tracked.fill_(int(value))
    return network


def test_average_moves_parameters_and_buffers_by_the_same_share():
    averaged, current = net(0.0), net(1.0)
    lightning_module.average(averaged, current, 0.9, step=10_000)
    for tensor in [*averaged.parameters(), averaged[1].running_mean, averaged[1].running_var]:
        torch.testing.assert_close(tensor.detach(), torch.full_like(tensor, 0.1))
    assert averaged[1].num_batches_tracked == 1


def test_average_follows_closely_at_first_and_copies_when_off():
    averaged, current = net(0.0), net(1.0)
    lightning_module.average(averaged, current, 0.999, step=1)
    assert float(averaged[0].weight.detach()) == pytest.approx(1 - 2 / 11)
    averaged = net(0.0)
    lightning_module.average(averaged, current, 0.0, step=5)
    assert float(averaged[0].weight.detach()) == 1.0


def test_less_memory_is_for_what_trains_alone():
    lean = Config(weights="receipts", optim={"freeze_batchnorm": True}, runtime={"activation_checkpointing": True})
    machine = Machine("cpu", 1, 0, bf16=False, channels_last=False, reasons={})
    training, plain = lightning_module.Training(lean, machine), lightning_module.Training(Config(), machine)
    assert training.detector.encoder.checkpoint_activations
    assert not training.averaged.encoder.checkpoint_activations
    assert isinstance(training.averaged.encoder.stem[1], torch.nn.BatchNorm2d)
    assert not training.detector.encoder.stem[1].weight.requires_grad
    assert training.state_dict().keys() == plain.state_dict().keys()
    training.detector.encoder.stem[1].weight.data.fill_(3.0)
    lightning_module.average(training.averaged, training.detector, 0.9, step=10_000)
    torch.testing.assert_close(training.averaged.encoder.stem[1].weight.data, torch.full((32,), 1.2))
    assert len(adamw_parameters(training)) < len(adamw_parameters(plain))


def adamw_parameters(training):
    return [p for group in training.configure_optimizers()["optimizer"].param_groups for p in group["params"]]
