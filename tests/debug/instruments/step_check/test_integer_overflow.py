"""Targets in a type that is too small for the classes, and healthy ones in small types."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from ocrlab.debug.instruments.step_check import checker


def narrow_findings(dtype: torch.dtype, classes: int) -> list[str]:
    torch.manual_seed(0)
    model = nn.Linear(8, classes)
    batch = (torch.randn(32, 8), torch.randint(0, min(classes, 100), (32,)).to(dtype))
    report = checker.check(model, batch, lambda m, b: functional.cross_entropy(m(b[0]), b[1].long()))
    return [finding.rule for finding in report.findings if finding.rule == "targets.narrow"]


@pytest.mark.parametrize(("dtype", "classes"), [(torch.uint8, 1000), (torch.int8, 200)])
def test_a_type_that_cannot_name_all_classes(dtype, classes):
    assert narrow_findings(dtype, classes) == ["targets.narrow"]


@pytest.mark.parametrize(
    ("dtype", "classes"),
    [(torch.int64, 1000), (torch.int16, 1000), (torch.uint8, 21), (torch.uint8, 260), (torch.int8, 100)],
)
def test_a_type_that_is_large_enough(dtype, classes):
    """260: bytes and four special words."""
    assert narrow_findings(dtype, classes) == []
