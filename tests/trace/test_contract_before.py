"""What is wrong before a step runs: a switch that switches nothing."""

from __future__ import annotations

import pytest
from torch import nn

from ocrlab.trace import contract
from tests.trace.test_contract_forward import classes, data, one, rules


@pytest.mark.parametrize("wanted", [True, False])
def test_requires_grad_set_on_a_module_and_not_on_its_parameters(wanted: bool) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 8)), nn.Linear(8, 3))
    model[0].requires_grad_(not wanted)
    model[0].requires_grad = wanted
    told = one(contract.check(model, data(), classes), "weights.switch")
    assert told.where == "0" and ("frozen" if wanted else "trained") in told.got
    model[0].requires_grad_(wanted)
    assert "weights.switch" not in rules(contract.check(model, data(), classes))
