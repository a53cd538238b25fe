"""What is said of what was noted; whole trainings are in test_learning."""

from __future__ import annotations

import math

import torch
from torch import nn

from ocrlab.recording.verdicts import Step, Told, sentences

MODEL = nn.Linear(4, 2)


def test_one_or_two_steps_are_no_training_to_judge() -> None:
    assert sentences(Told(batches=2, looks=2, steps=0, owned={"weight", "bias"}), MODEL) == []
    assert sentences(Told(batches=2, looks=2, steps=2, bare=2, owned={"weight", "bias"}), MODEL) == []


def test_no_batch_is_told_with_the_length_of_the_loader() -> None:
    said = sentences(Told(walks=[(0, 0), (0, 0)]), MODEL)
    assert len(said) == 1
    assert "2 walks over the loader gave none (len(loader) is 0)" in said[0]


def test_an_exit_before_the_first_batch_is_told_alone() -> None:
    assert sentences(Told(ended="it ended"), MODEL) == ["it ended"]


def test_a_constant_loss_is_told_to_the_last_bit() -> None:
    told = Told(batches=40, losses=40, steps=40, same=39, last=0.5, first_losses=[0.5] * 8)
    told.last_losses.extend([0.5] * 8)
    assert sentences(told, MODEL)[0].startswith("the last 40 losses were 0.5, the same to the last bit")


def test_an_update_that_half_precision_loses_is_told_by_parameter() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16())
    names = {name for name, _ in model.named_parameters()}
    step = Step(names, names, dict.fromkeys(names, 1.0), {"0.weight", "0.bias"}, 1e-3)
    told = Told(batches=9, looks=5, steps=9, seen=[step, step], owned=names)
    assert sentences(told, model)[0].startswith("1 (2 parameters): steps change nothing")


def test_targets_in_batches_of_any_form() -> None:
    told = Told()
    told.see_batch([("images", torch.rand(4, 3)), ("labels", torch.ones(4))])
    told.see_batch([("0", torch.rand(4, 3)), ("1", torch.tensor([0.0, 1.0]))])
    told.see_batch([("images", torch.rand(4, 3)), ("mask", torch.ones(4))])
    assert told.constant == [1.0, None]
    assert told.compared == 6
    assert math.isnan(told.last)
