"""A small classification task, the observed step alone, and the findings of a report by their rule."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import ocrlab
from ocrlab.debug.laws.law import Report
from ocrlab.debug.laws.result import Result

check = partial(ocrlab.check_step, seconds=0)  # the observed step, without experiments


def rules(report: Report) -> set[str]:
    return {finding.rule for finding in report.findings}


def finding_of(report: Report, rule: str) -> Result:
    finding = next(finding for finding in report.findings if finding.rule == rule)
    assert finding.where and finding.got and finding.need and finding.do
    return finding


def classes(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def data(size: int = 16) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 8, generator=torch.Generator().manual_seed(0)), torch.arange(size) % 3
