"""The sentence for a loss that is NaN: a learning rate that has moved nothing yet is not to blame."""

from __future__ import annotations

import math

from torch import nn

from ocrlab.debug.recorder.training_health.rules import TrainingStats, sentences

NAN = math.nan
MODEL = nn.Linear(4, 2)


def report(first: list[float], batch: int) -> str:
    stats = TrainingStats(batches=30, losses=30, steps=30, last=NAN, lost=batch, first_losses=first)
    stats.last_losses.append(NAN)
    [text] = [text for text in sentences(stats, MODEL) if "not finite" in text]
    return text


def test_a_loss_that_was_finite_at_first_may_be_the_rates_fault() -> None:
    text = report([0.5, 0.7, NAN], 3)
    assert "from batch 3 of 30 on: it learns nothing since" in text and "try a smaller rate first" in text


def test_a_first_loss_that_is_not_finite_precedes_every_step() -> None:
    text = report([NAN] * 3, 1)
    assert "no optimiser step came before it" in text and "smaller rate" not in text and "ocrlab replay" in text
