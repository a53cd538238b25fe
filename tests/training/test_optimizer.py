"""The optimiser of a training, and what must not be loaded with it."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from torch import nn

from ocrlab.config.schema import Optim
from ocrlab.training.optimizer import adamw, learning_rate


def test_vectors_are_not_decayed():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    optimizer = adamw(model, Optim(lr=0.25, weight_decay=0.5))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {name: decay[id(p)] for name, p in model.named_parameters()} == {
        "0.weight": 0.5, "0.bias": 0.0, "1.weight": 0.0, "1.bias": 0.0
    }  # fmt: skip
    assert all(group["lr"] == 0.25 for group in optimizer.param_groups)


def test_rate_warms_up_then_falls_to_zero():
    curve = [learning_rate(step, 10, 100) for step in range(101)]
    assert curve[0] == pytest.approx(0.1)
    assert max(curve) == 1.0
    assert curve[100] == pytest.approx(0)
    assert all(a >= b for a, b in itertools.pairwise(curve[10:]))


def test_neither_it_nor_the_sanity_checks_load_lightning():
    program = "import sys, ocrlab.training.optimizer, ocrlab.training.sanity.sanity_checks\n"
    program += "sys.exit('lightning' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=120).returncode == 0
